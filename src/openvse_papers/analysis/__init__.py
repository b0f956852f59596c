"""Analyses that explain models: figures that can go into a paper, and the numbers behind them."""
