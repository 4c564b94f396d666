//! The hashes of an output and of its blocks, computed in one pass.
//!
//! BLAKE3 is a tree, and a block is one of its subtrees: merging the hashes of all blocks gives the
//! hash of the whole output, which the outcome in the ledger names. So a list of block hashes can
//! be checked against the ledger without reading the output, and a block against the list without
//! reading the others. Outputs recorded before lists existed have the same hash, so that their
//! lists can be computed later.

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

/// Bytes of one block. A power of two, or blocks would not be subtrees.
pub(crate) const BLOCK: u64 = 1024 * 1024;

/// Length and hash of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputHash {
    pub(crate) bytes: u64,
    pub(crate) hash: blake3::Hash,
    /// `None` for an output of a single block, whose hash is the output's.
    pub(crate) blocks: Option<BlockHashes>,
}

/// Bytes hashed in one call: as many of BLAKE3's chunks as the widest registers hold. An output
/// arrives in pieces of any length, because a redactor holds back what may become a secret, and
/// hashing unaligned pieces is a third slower.
const STEP: usize = 16 * 1024;

/// Hashes an output as it arrives.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputHasher {
    /// Bytes of an incomplete step, not hashed yet.
    waiting: Vec<u8>,
    /// Hashes the last block. A full block stays here until the next byte arrives, since a single
    /// block is hashed differently.
    hasher: Box<blake3::Hasher>,
    in_block: u64,
    /// The blocks before the last one.
    blocks: Vec<ChainingValue>,
}

impl OutputHasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        if !self.waiting.is_empty() {
            let missing = STEP - self.waiting.len();
            let (now, later) = bytes.split_at(bytes.len().min(missing));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() < STEP {
                return;
            }
            let mut step = std::mem::take(&mut self.waiting);
            self.hash(&step);
            step.clear();
            (self.waiting, bytes) = (step, later);
        }
        let (steps, rest) = bytes.split_at(bytes.len() / STEP * STEP);
        self.hash(steps);
        self.waiting.extend_from_slice(rest);
    }

    fn hash(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.in_block == BLOCK {
                self.blocks.push(self.hasher.finalize_non_root());
                // `reset` would keep the offset of the previous block.
                *self.hasher = blake3::Hasher::new();
                self.hasher.set_input_offset(self.blocks.len() as u64 * BLOCK);
                self.in_block = 0;
            }
            let room = usize::try_from(BLOCK - self.in_block).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(now);
            self.in_block += now.len() as u64;
            bytes = later;
        }
    }

    pub(crate) fn finish(&self) -> OutputHash {
        let mut whole = self.clone();
        whole.hash(&self.waiting);
        whole.finish_hashed()
    }

    fn finish_hashed(&self) -> OutputHash {
        let bytes = self.blocks.len() as u64 * BLOCK + self.in_block;
        if self.blocks.is_empty() {
            return OutputHash { bytes, hash: self.hasher.finalize(), blocks: None };
        }
        let mut blocks = self.blocks.clone();
        blocks.push(self.hasher.finalize_non_root());
        let blocks = BlockHashes(blocks);
        OutputHash { bytes, hash: blocks.root(), blocks: Some(blocks) }
    }
}

/// The hashes of the blocks of an output that has more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockHashes(Vec<ChainingValue>);

impl BlockHashes {
    /// A stored list, if it belongs to an output of this length and hash.
    pub(crate) fn of_output(stored: &[u8], bytes: u64, hash: &blake3::Hash) -> Option<Self> {
        let (blocks, rest) = stored.as_chunks();
        let blocks = Self(blocks.to_vec());
        let complete = rest.is_empty() && blocks.0.len() as u64 == bytes.div_ceil(BLOCK);
        (complete && blocks.0.len() > 1 && blocks.root() == *hash).then_some(blocks)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Whether these are the bytes of a block.
    pub(crate) fn is_block(&self, index: u64, bytes: &[u8]) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index * BLOCK).update(bytes);
        let recorded = usize::try_from(index).ok().and_then(|index| self.0.get(index));
        !bytes.is_empty() && recorded == Some(&hasher.finalize_non_root())
    }

    fn root(&self) -> blake3::Hash {
        let (left, right) = self.0.split_at(left_blocks(self.0.len()));
        merge_subtrees_root(&merged(left), &merged(right), Mode::Hash)
    }
}

/// The number of blocks in the left subtree: all blocks but the last are full, so the tree over
/// blocks has the shape of BLAKE3's tree over chunks.
fn left_blocks(blocks: usize) -> usize {
    blocks.next_power_of_two() / 2
}

fn merged(blocks: &[ChainingValue]) -> ChainingValue {
    match blocks {
        [one] => *one,
        _ => {
            let (left, right) = blocks.split_at(left_blocks(blocks.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 7 % 251) as u8).collect()
    }

    fn hashed(bytes: &[u8], step: usize) -> OutputHash {
        let mut hasher = OutputHasher::default();
        bytes.chunks(step).for_each(|part| hasher.update(part));
        hasher.finish()
    }

    #[test]
    fn the_hash_is_that_of_the_whole_output_around_every_boundary() {
        let block = BLOCK as usize;
        for blocks in 0..6 {
            for length in [blocks * block, blocks * block + 1, (blocks + 1) * block - 1] {
                let bytes = bytes(length);
                let hashed = hashed(&bytes, 300_007);
                assert_eq!(hashed.hash, blake3::hash(&bytes), "{length}");
                assert_eq!(hashed.bytes, length as u64);
                assert_eq!(hashed.blocks.is_some(), length > block, "{length}");
            }
        }
    }

    #[test]
    fn a_partial_last_step_is_hashed() {
        for length in [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP, 3 * STEP + 7] {
            let bytes = bytes(length);
            for piece in [1, 1023, STEP - 1, STEP, STEP + 1, 5 * STEP] {
                let hashed = hashed(&bytes, piece);
                assert_eq!(hashed.hash, blake3::hash(&bytes), "{length} by {piece}");
                assert_eq!(hashed.bytes, length as u64);
            }
        }
    }

    #[test]
    fn a_list_that_is_not_the_output_s_is_not_accepted() {
        let bytes = bytes(3 * BLOCK as usize + 9);
        let OutputHash { bytes: length, hash, blocks } = hashed(&bytes, bytes.len());
        let blocks = blocks.unwrap();
        let stored = blocks.as_bytes();
        assert_eq!(BlockHashes::of_output(stored, length, &hash), Some(blocks.clone()));
        assert_eq!(BlockHashes::of_output(&stored[32..], length, &hash), None);
        assert_eq!(BlockHashes::of_output(&stored[1..], length, &hash), None);
        assert_eq!(BlockHashes::of_output(&[], length, &hash), None);
        assert_eq!(BlockHashes::of_output(stored, length + BLOCK, &hash), None);
        let mut edited = stored.to_vec();
        edited[40] ^= 1;
        assert_eq!(BlockHashes::of_output(&edited, length, &hash), None);
        edited.clear();
        edited.extend_from_slice(&stored[32..64]);
        edited.extend_from_slice(&stored[..32]);
        edited.extend_from_slice(&stored[64..]);
        assert_eq!(BlockHashes::of_output(&edited, length, &hash), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn every_block_is_checked_by_itself(
            length in BLOCK as usize + 1..5 * BLOCK as usize,
            step in 1000usize..3_000_000,
            flip in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = bytes(length);
            let hashed = hashed(&bytes, step);
            prop_assert_eq!(hashed.hash, blake3::hash(&bytes));
            let blocks = hashed.blocks.unwrap();
            let good = |bytes: &[u8]| -> Vec<bool> {
                let each = bytes.chunks(BLOCK as usize).enumerate();
                each.map(|(index, block)| blocks.is_block(index as u64, block)).collect()
            };
            prop_assert!(good(&bytes).into_iter().all(|good| good));
            let at = flip.index(length);
            bytes[at] ^= 0x20;
            let bad: Vec<usize> =
                good(&bytes).iter().enumerate().filter(|(_, good)| !**good).map(|b| b.0).collect();
            prop_assert_eq!(bad, [at / BLOCK as usize]);
        }
    }
}
