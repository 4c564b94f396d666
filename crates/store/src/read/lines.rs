//! Lines from either end of any output.

use std::io::{self, Read, Seek, SeekFrom};

const BLOCK: usize = 64 * 1024;

/// The length of the first `lines` lines. A last line without a newline counts.
pub fn head_end(output: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let mut end = output.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut left) = (vec![0; BLOCK], lines);
    while left > 0 {
        let read = output.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        for newline in memchr::memchr_iter(b'\n', &buffer[..read]) {
            left -= 1;
            if left == 0 {
                return Ok(end + newline as u64 + 1);
            }
        }
        end += read as u64;
    }
    Ok(if lines == 0 { 0 } else { end })
}

/// Where the last `lines` lines begin. A last line without a newline counts.
pub fn tail_start(output: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let length = output.seek(SeekFrom::End(0))?;
    let (mut start, mut left) = (length, lines);
    if lines == 0 {
        return Ok(length);
    }
    let mut buffer = vec![0; BLOCK];
    while start > 0 {
        let block = start.min(BLOCK as u64);
        let from = start - block;
        output.seek(SeekFrom::Start(from))?;
        let buffer = &mut buffer[..block as usize];
        output.read_exact(buffer)?;
        // The newline that ends the last line does not start another.
        let searched = if start == length && buffer.last() == Some(&b'\n') {
            &buffer[..buffer.len() - 1]
        } else {
            &buffer[..]
        };
        for newline in memchr::memrchr_iter(b'\n', searched) {
            left -= 1;
            if left == 0 {
                return Ok(from + newline as u64 + 1);
            }
        }
        start = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn slices(text: &[u8], lines: u64) -> (Vec<u8>, Vec<u8>) {
        let mut output = Cursor::new(text);
        let end = head_end(&mut output, lines).unwrap() as usize;
        let start = tail_start(&mut output, lines).unwrap() as usize;
        (text[..end].to_vec(), text[start..].to_vec())
    }

    #[test]
    fn lines_are_counted_like_head_and_tail_do() {
        let text = b"a\nbb\nccc\n";
        assert_eq!(slices(text, 0), (b"".to_vec(), b"".to_vec()));
        assert_eq!(slices(text, 1), (b"a\n".to_vec(), b"ccc\n".to_vec()));
        assert_eq!(slices(text, 2), (b"a\nbb\n".to_vec(), b"bb\nccc\n".to_vec()));
        assert_eq!(slices(text, 9), (text.to_vec(), text.to_vec()));
        assert_eq!(slices(b"a\nb", 1), (b"a\n".to_vec(), b"b".to_vec()));
        assert_eq!(slices(b"\n\n", 1), (b"\n".to_vec(), b"\n".to_vec()));
        assert_eq!(slices(b"", 3), (b"".to_vec(), b"".to_vec()));
    }

    #[test]
    fn lines_are_found_across_blocks() {
        let text: Vec<u8> = (0..40_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
        let (head, tail) = slices(&text, 30_000);
        assert_eq!(memchr::memchr_iter(b'\n', &head).count(), 30_000);
        assert!(tail.starts_with(b"line 10000\n"));
    }
}
