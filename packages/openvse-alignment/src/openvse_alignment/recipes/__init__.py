"""The recipes of CHAN and AVSE, in a folder for each."""
