"""OpenMoji: some 1,900 drawn emoji with several texts each, the data set of the demo."""
