"""Holds additions to a client's job that only some methods use. Other packages call only the methods of `Piece`."""
