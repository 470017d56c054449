"""Holds pieces that only some methods add to a client's job. Other packages call only the methods of `Piece`."""
