"""What one paper's table needs: published data sets, questions about images, HGR, judgements, figures and sweeps.

It uses openvse as any package does: through its entry points and its public names.
"""
