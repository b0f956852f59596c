"""The index of a folder of images, or of a file of sentences, on disk: made, followed, repaired and read."""
