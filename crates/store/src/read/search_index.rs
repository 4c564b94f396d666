//! The searchable text: the beginning and the end of each stream, without terminal escapes.
//!
//! The text of a stream is a pure function of its bytes, because removing it from the index
//! requires exactly the text that was added.

use std::io::{self, Read, Seek, SeekFrom};

use rusqlite::Connection;

/// Bytes indexed at each end of a stream.
pub(crate) const WINDOW: u64 = 64 * 1024;

/// The indexed text of an output.
pub(crate) fn text_of(output: &mut (impl Read + Seek)) -> io::Result<String> {
    let length = output.seek(SeekFrom::End(0))?;
    output.seek(SeekFrom::Start(0))?;
    if length <= 2 * WINDOW {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes)?;
        return Ok(plain(&bytes));
    }
    let mut bytes = vec![0; WINDOW as usize];
    output.read_exact(&mut bytes)?;
    let mut text = plain(&bytes);
    output.seek(SeekFrom::Start(length - WINDOW))?;
    output.read_exact(&mut bytes)?;
    text.push('\n');
    text.push_str(&plain(&bytes));
    Ok(text)
}

pub(crate) fn add(connection: &Connection, output_key: i64, text: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO search (rowid, text) VALUES (?1, ?2)")?
        .execute((output_key, text))?;
    Ok(())
}

/// Removes exactly the text that was added.
pub(crate) fn remove(connection: &Connection, output_key: i64, text: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO search (search, rowid, text) VALUES ('delete', ?1, ?2)")?
        .execute((output_key, text))?;
    Ok(())
}

/// Empties the index and marks every output for indexing: for a text that is unknown by now.
pub(crate) fn reset(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "INSERT INTO search (search) VALUES ('delete-all');
         UPDATE outputs SET pending = 1 WHERE pending = 0;",
    )
}

/// Text without escape sequences: otherwise a colour code would become part of the next word.
pub(crate) fn plain(bytes: &[u8]) -> String {
    if memchr::memchr(0x1B, bytes).is_none() {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(escape) = memchr::memchr(0x1B, rest) {
        kept.extend_from_slice(&rest[..escape]);
        rest = &rest[escape + 1..];
        let length = match rest.first() {
            // CSI: parameters, then one final byte.
            Some(b'[') => rest
                .iter()
                .skip(1)
                .position(|byte| (0x40..=0x7E).contains(byte))
                .map_or(rest.len(), |end| end + 2),
            // OSC and other strings: until BEL or ESC.
            Some(b']' | b'P' | b'_' | b'^') => rest
                .iter()
                .position(|&byte| byte == 0x07 || byte == 0x1B)
                .map_or(rest.len(), |end| end + usize::from(rest[end] == 0x07)),
            // Character sets: `ESC ( B`.
            Some(b'(' | b')' | b'*' | b'+') => 2,
            Some(_) => 1,
            None => 0,
        };
        rest = &rest[length.min(rest.len())..];
    }
    kept.extend_from_slice(rest);
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_not_part_of_the_text() {
        assert_eq!(plain(b"\x1b[31merror\x1b[0m: x\x1b(B \x1b]0;title\x07y\x1b"), "error: x y");
        assert_eq!(plain(b"\xffplain"), "\u{fffd}plain");
    }

    #[test]
    fn only_both_ends_of_a_large_output_are_indexed() {
        let mut bytes = b"first ".to_vec();
        bytes.extend(b"x ".repeat(100_000));
        bytes.extend(b"middle ");
        bytes.extend(b"x ".repeat(100_000));
        bytes.extend(b"last");
        let text = text_of(&mut io::Cursor::new(&bytes)).unwrap();
        assert!(text.starts_with("first") && text.ends_with("last") && !text.contains("middle"));
        assert_eq!(text.len() as u64, 2 * WINDOW + 1);
    }
}
