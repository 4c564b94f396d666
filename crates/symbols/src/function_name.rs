//! Shortens names of functions for use in a sentence.

/// `commit` of `store::Log<T>::commit::{closure#0}`, of `ns::Log::commit(int)` and of
/// `<store::Log as store::Write>::commit`.
pub(crate) fn last_part(name: &str) -> String {
    let name = name.trim();
    // Skip arguments of a template or of a function, and the type that a trait is implemented for.
    let mut plain = String::new();
    let mut depth = 0_usize;
    let mut before = ' ';
    for c in name.chars() {
        match c {
            // A closure or an anonymous namespace is a component, too.
            '(' if depth == 0 && !plain.is_empty() && !plain.ends_with(':') => break,
            '<' | '(' => depth += 1,
            // The `>` of `->` closes nothing.
            '>' if before == '-' => {}
            '>' | ')' => depth = depth.saturating_sub(1),
            c if depth == 0 => plain.push(c),
            _ => {}
        }
        before = c;
    }
    let is_name = |part: &&str| !part.is_empty() && !part.starts_with('{') && *part != "<locals>";
    let parts = plain.split("::").flat_map(|part| part.split('.'));
    parts.filter(is_name).last().unwrap_or(name).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_path_is_the_name() {
        for (name, part) in [
            ("commit", "commit"),
            ("store::Log<alloc::vec::Vec<u8>>::commit::{{closure}}", "commit"),
            ("<store::Log as store::Write>::commit", "commit"),
            ("ns::(anonymous namespace)::Log::commit(int, std::string) const", "commit"),
            ("store::each::<fn() -> ()>", "each"),
            ("Store.commit.<locals>.inner", "inner"),
            ("main", "main"),
            ("", ""),
        ] {
            assert_eq!(last_part(name), part, "{name}");
        }
    }
}
