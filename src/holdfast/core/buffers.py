"""What counts as bytes: anything that lends its memory without a copy. A memory-mapped file comes as a memoryview."""

Buffer = bytes | bytearray | memoryview
