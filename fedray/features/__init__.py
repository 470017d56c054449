"""Pieces that only some methods add to a client's job; other packages use them only by the methods of `Piece`."""
