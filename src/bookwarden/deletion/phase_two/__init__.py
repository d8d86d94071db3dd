"""Phase two: the sweep's verification, decision and deletion."""
