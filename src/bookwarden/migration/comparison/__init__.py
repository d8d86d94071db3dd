"""The comparison of two metadata stores."""
