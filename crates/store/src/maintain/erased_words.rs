//! Removes the traces that an erased word leaves in the search index.
//!
//! FTS5's `secure-delete` removes a word from the leaves of the index. Between two leaves, in
//! `search_idx`, it keeps a separator: a prefix of the first word of the second leaf, cut at the
//! first difference from the word before. That prefix can be nearly the whole word, and stays when
//! the word is removed. Here it is replaced by a word that is still indexed.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, Transaction};

use crate::read::search_index;

/// The index's key prefix for words; other first bytes are prefix indexes, which `search` does not
/// use.
const WORD: u8 = b'0';

/// The words of the texts that one transaction removes from the index, found by the same tokenizer,
/// in memory.
pub(crate) struct ErasedWords {
    tokenizer: Connection,
}

impl ErasedWords {
    pub(crate) fn new() -> rusqlite::Result<Self> {
        let tokenizer = Connection::open_in_memory()?;
        // As in the schema: the words must be the same.
        tokenizer.execute_batch(
            "CREATE VIRTUAL TABLE erased USING fts5 (
               text, content = '', detail = none,
               tokenize = \"unicode61 remove_diacritics 2\"
             );
             CREATE VIRTUAL TABLE words USING fts5vocab (erased, row);",
        )?;
        Ok(Self { tokenizer })
    }

    pub(crate) fn add(&mut self, text: &str) -> rusqlite::Result<()> {
        self.tokenizer
            .prepare_cached("INSERT INTO erased (text) VALUES (?1)")?
            .execute([text])
            .map(drop)
    }

    /// Removes the words from the separators, after the texts were removed from the index.
    pub(crate) fn remove_from_separators(self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        let words = self.words()?;
        if words.is_empty() {
            return Ok(());
        }
        tx.execute_batch(
            "CREATE VIRTUAL TABLE IF NOT EXISTS temp.search_words USING fts5vocab (main, search, row)",
        )?;
        // Reading the words also makes the index flush pending changes.
        let mut next = tx.prepare_cached(
            "SELECT term FROM temp.search_words WHERE term >= CAST(?1 AS TEXT) LIMIT 1",
        )?;
        let mut word_from = |start: &[u8]| -> rusqlite::Result<Option<String>> {
            next.query_row([start], |row| row.get(0)).optional()
        };
        word_from(b"")?;
        for (segment, separator) in separators_of(tx, &words)? {
            match word_from(&separator[1..])? {
                Some(word) if word.as_bytes().starts_with(&separator[1..]) => {}
                // All words of the leaf come after its separator, so the next word is in this leaf
                // or later.
                Some(word) if replace(tx, segment, &separator, &word)? => {}
                // A leaf without words: no word can replace the separator.
                Some(_) | None => return search_index::reset(tx),
            }
        }
        Ok(())
    }

    fn words(&self) -> rusqlite::Result<BTreeSet<Vec<u8>>> {
        self.tokenizer
            .prepare("SELECT term FROM words")?
            .query_map([], |row| row.get::<_, String>(0).map(String::into_bytes))?
            .collect()
    }
}

/// The separators that are a prefix of one of the words.
fn separators_of(
    tx: &Transaction<'_>,
    words: &BTreeSet<Vec<u8>>,
) -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut all = tx.prepare_cached("SELECT segid, term FROM search_idx")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let separator: Vec<u8> = row.get(1)?;
        if separator.first() != Some(&WORD) || separator.len() < 2 {
            continue;
        }
        let beginning = separator[1..].to_vec();
        let from_there = words.range(beginning.clone()..).next();
        if from_there.is_some_and(|word| word.starts_with(&beginning)) {
            found.push((row.get(0)?, separator));
        }
    }
    Ok(found)
}

/// Replaces a separator, unless the next leaf begins with the word or before it; returns whether it
/// did.
fn replace(
    tx: &Transaction<'_>,
    segment: i64,
    separator: &[u8],
    word: &str,
) -> rusqlite::Result<bool> {
    let mut key = vec![WORD];
    key.extend_from_slice(word.as_bytes());
    let following: Option<Vec<u8>> = tx
        .prepare_cached(
            "SELECT term FROM search_idx WHERE segid = ?1 AND term > ?2 ORDER BY term LIMIT 1",
        )?
        .query_row((segment, separator), |row| row.get(0))
        .optional()?;
    if following.is_some_and(|following| following <= key) {
        return Ok(false);
    }
    tx.prepare_cached("UPDATE search_idx SET term = ?3 WHERE segid = ?1 AND term = ?2")?
        .execute((segment, separator, key))?;
    Ok(true)
}
