-- The hashes of the blocks of a large output, 32 bytes each, whose merged hash is `hash`. NULL for an
-- output of one block, and until the list is made; empty where that cannot be done, because the
-- bytes are not those recorded.
ALTER TABLE outputs ADD COLUMN blocks BLOB;

CREATE INDEX outputs_without_blocks ON outputs (place) WHERE bytes > 1048576 AND blocks IS NULL;
