//! A YAML document with positions, and the list of its errors.

use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, Scalar, YamlData};

/// Walks a document and collects every error instead of stopping at the first.
pub(super) struct Nodes<'t> {
    pub(super) file: PathBuf,
    /// The text, to preserve spelling: `1.10` is a name, not the number 1.1.
    characters: Vec<char>,
    pub(super) problems: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// Whether unknown keys are only warnings.
    pub(super) lenient: bool,
    text: std::marker::PhantomData<&'t str>,
}

pub(super) type Node<'t> = MarkedYaml<'t>;

impl<'t> Nodes<'t> {
    pub(super) fn new(file: &Path, text: &'t str, lenient: bool) -> Self {
        Self {
            file: file.to_owned(),
            characters: text.chars().collect(),
            problems: Vec::new(),
            warnings: Vec::new(),
            lenient,
            text: std::marker::PhantomData,
        }
    }

    pub(super) fn place(&self, node: &Node<'_>) -> String {
        let start = node.span.start;
        format!("{}:{}:{}", self.file.display(), start.line(), start.col() + 1)
    }

    pub(super) fn problem(&mut self, node: &Node<'_>, path: &str, what: impl AsRef<str>) {
        let place = self.place(node);
        self.problems.push(format!("{place}: {path}: {}", what.as_ref()));
    }

    pub(super) fn warning(&mut self, node: &Node<'_>, path: &str, what: impl AsRef<str>) {
        let place = self.place(node);
        self.warnings.push(format!("{place}: {path}: {}", what.as_ref()));
    }

    /// The keys and values of a group. Unknown keys are reported and left out.
    pub(super) fn entries<'n>(
        &mut self,
        node: &'n Node<'t>,
        prefix: &str,
        known: Option<&[&str]>,
    ) -> Vec<(String, &'n Node<'t>, &'n Node<'t>)> {
        let mapping = match &node.data {
            YamlData::Mapping(mapping) => mapping,
            // A group whose content is commented out.
            YamlData::Value(Scalar::Null) => return Vec::new(),
            _ => {
                let what = if prefix.is_empty() { "the file" } else { prefix };
                let place = self.place(node);
                self.problems.push(format!("{place}: {what} takes keys and values"));
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for (name, value) in mapping {
            let Some(text) = self.scalar(name) else {
                let place = self.place(name);
                self.problems.push(format!("{place}: a key must be a word"));
                continue;
            };
            if known.is_some_and(|known| !known.contains(&text.as_str())) {
                let path = |key: &str| {
                    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
                };
                let hint = nearest(&text, known.unwrap_or_default())
                    .map(|meant| format!("; did you mean {}?", path(meant)))
                    .unwrap_or_default();
                let line = format!("{}: there is no key {}{hint}", self.place(name), path(&text));
                if self.lenient {
                    self.warnings.push(line)
                } else {
                    self.problems.push(line)
                }
                continue;
            }
            entries.push((text, name, value));
        }
        entries
    }

    /// A single value as written.
    pub(super) fn scalar(&self, node: &Node<'_>) -> Option<String> {
        match &node.data {
            YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
            YamlData::Value(Scalar::Null) => None,
            YamlData::Value(_) => {
                let (start, end) = (node.span.start.index(), node.span.end.index());
                let written = self.characters.get(start..end)?.iter().collect::<String>();
                Some(written.trim().to_owned())
            }
            _ => None,
        }
    }

    pub(super) fn text(&mut self, node: &Node<'_>, path: &str) -> Option<String> {
        match self.scalar(node) {
            Some(text) if text.trim().is_empty() => self.problem(node, path, "is empty"),
            Some(text) if text.contains('\0') => self.problem(node, path, "contains a NUL byte"),
            Some(text) => return Some(text),
            None => self.problem(node, path, "takes a single value"),
        }
        None
    }

    pub(super) fn number(&mut self, node: &Node<'_>, path: &str, least: u64) -> Option<u64> {
        let number = match node.data {
            YamlData::Value(Scalar::Integer(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        let fits = number.filter(|number| (least..=1_000_000).contains(number));
        if fits.is_none() {
            self.problem(node, path, format!("takes a whole number from {least} to 1000000"));
        }
        fits
    }

    pub(super) fn items<'n>(&mut self, node: &'n Node<'t>, path: &str) -> &'n [Node<'t>] {
        match &node.data {
            YamlData::Sequence(items) if !items.is_empty() => return items,
            _ => self.problem(node, path, "takes a list that is not empty"),
        }
        &[]
    }

    /// A list of single values, without repeats.
    pub(super) fn texts<'n>(
        &mut self,
        node: &'n Node<'t>,
        path: &str,
    ) -> Vec<(String, &'n Node<'t>)> {
        let mut texts: Vec<(String, &Node<'t>)> = Vec::new();
        for item in self.items(node, path) {
            let Some(text) = self.text(item, path) else { continue };
            if texts.iter().any(|(known, _)| *known == text) {
                self.warning(item, path, format!("{text} is listed twice"));
            } else {
                texts.push((text, item));
            }
        }
        texts
    }
}

/// The known word that this one probably misspells.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let nearest = known.iter().map(|known| (strsim::levenshtein(word, known), *known)).min()?;
    (nearest.0 <= 1 + word.len() / 4).then_some(nearest.1)
}
