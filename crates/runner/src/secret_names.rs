//! Which variables look secret, remembered: a loop asks for the same names with every run.

use std::cell::RefCell;
use std::collections::HashMap;

use retake_store::redact::is_secret_name;

/// More names than this are no environment but something that makes them up.
const MOST: usize = 10_000;

thread_local! {
    static KNOWN: RefCell<HashMap<String, bool>> = RefCell::default();
}

/// Whether the value of a variable of this name is to be kept out of the record.
pub(crate) fn looks_secret(name: &str) -> bool {
    KNOWN.with_borrow_mut(|known| {
        if let Some(secret) = known.get(name) {
            return *secret;
        }
        if known.len() >= MOST {
            known.clear();
        }
        let secret = is_secret_name(name);
        known.insert(name.to_owned(), secret);
        secret
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_the_same_as_the_rule_however_often_it_is_asked() {
        for name in ["API_TOKEN", "HOME", "DB_PASSWORD", "PATH"] {
            for _ in 0..3 {
                assert_eq!(looks_secret(name), is_secret_name(name), "{name}");
            }
        }
        for number in 0..=MOST {
            assert!(!looks_secret(&format!("X{number}")));
        }
        assert!(KNOWN.with_borrow(HashMap::len) <= MOST);
    }
}
