"""From sentences to words and pieces: vocabularies, word splitters, cleaning, and unknown words."""
