"""The recipes of CHAN, AVSE and LAPS, in a folder for each."""
