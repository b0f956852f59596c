"""Methods that score the parts of an image and of a sentence against each other, each part with its best partner."""
