//! The part of a stream that a result contains: all of it, or head and tail of a large one.

use retake_types::text;

/// Collects a stream of any length in bounded memory.
pub struct HeadTail {
    limit: usize,
    head: Vec<u8>,
    /// A ring of the newest bytes after the head; `next` is where the oldest of them is.
    tail: Vec<u8>,
    next: usize,
    total: u64,
}

impl HeadTail {
    /// Keeps at most `limit` bytes, half of them from the beginning.
    pub fn new(limit: usize) -> Self {
        Self { limit, head: Vec::new(), tail: Vec::new(), next: 0, total: 0 }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = (self.limit / 2).saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        bytes = &bytes[room..];
        let capacity = self.limit - self.limit / 2;
        if bytes.len() >= capacity {
            self.tail.clear();
            self.next = 0;
            bytes = &bytes[bytes.len() - capacity..];
        }
        let room = (capacity - self.tail.len()).min(bytes.len());
        if self.tail.len() < capacity {
            self.tail.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
        }
        while !bytes.is_empty() {
            let n = (capacity - self.next).min(bytes.len());
            self.tail[self.next..self.next + n].copy_from_slice(&bytes[..n]);
            self.next = (self.next + n) % capacity;
            bytes = &bytes[n..];
        }
    }

    /// Whether bytes were left out.
    pub fn truncated(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// The stream, with a line in place of omitted bytes. Cuts between characters.
    pub fn finish(self) -> Vec<u8> {
        let truncated = self.truncated();
        let mut tail = self.tail;
        tail.rotate_left(self.next);
        let mut carried = self.head;
        if !truncated {
            carried.extend_from_slice(&tail);
            return carried;
        }
        carried.truncate(floor_boundary(&carried));
        let start = tail.iter().take(3).take_while(|&&byte| byte & 0xC0 == 0x80).count();
        let tail = &tail[start..];
        let left_out = self.total - carried.len() as u64 - tail.len() as u64;
        let left_out = text::count(left_out, "byte");
        carried.extend_from_slice(format!("\n[retake: {left_out} left out here]\n").as_bytes());
        carried.extend_from_slice(tail);
        carried
    }
}

/// The length without a partial character at the end.
fn floor_boundary(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(4) {
        let at = bytes.len() - back;
        let needed = match bytes[at] {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            0x80..=0xBF => continue,
            _ => 1,
        };
        return if needed > back { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry(limit: usize, chunks: &[&[u8]]) -> (String, bool) {
        let mut kept = HeadTail::new(limit);
        for chunk in chunks {
            kept.push(chunk);
        }
        let truncated = kept.truncated();
        (String::from_utf8(kept.finish()).unwrap(), truncated)
    }

    #[test]
    fn text_within_the_limit_is_kept_whole_in_any_chunks() {
        for size in 1..=10 {
            let chunks: Vec<_> = b"0123456789".chunks(size).collect();
            assert_eq!(carry(10, &chunks), ("0123456789".into(), false));
        }
        assert_eq!(carry(10, &[]), (String::new(), false));
    }

    #[test]
    fn text_beyond_the_limit_keeps_its_head_and_tail() {
        let all: Vec<u8> = (0..100u8).map(|n| b'a' + n % 26).collect();
        for size in [1, 3, 7, 50, 100] {
            let (text, truncated) = carry(10, &all.chunks(size).collect::<Vec<_>>());
            assert!(truncated);
            assert_eq!(text, "abcde\n[retake: 90 bytes left out here]\nrstuv", "{size}");
        }
    }

    #[test]
    fn characters_are_not_cut() {
        let (text, _) = carry(10, &["ääääääääää".as_bytes()]);
        assert_eq!(text, "ää\n[retake: 12 bytes left out here]\nää");
        let (text, _) = carry(9, &["aé€𐍈€é€𐍈a".as_bytes()]);
        assert!(text.starts_with("aé\n") && text.ends_with("\n𐍈a"), "{text}");
    }

    #[test]
    fn a_limit_of_zero_keeps_no_text() {
        assert_eq!(carry(0, &[b"abc"]).0, "\n[retake: 3 bytes left out here]\n");
    }
}
