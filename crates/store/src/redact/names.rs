//! Which variables are secret by their name. Nothing here looks at a value.

/// Words that make a name secret as its last part (`API_KEY`, `apiToken`) or as the whole name.
const ENDINGS: [&str; 14] = [
    "KEY",
    "SECRET",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "PWD",
    "PASS",
    "APIKEY",
    "AUTHTOKEN",
    "CREDENTIAL",
    "CREDENTIALS",
    "SECRETS",
];

/// Words that make a name secret wherever they stand (`AWS_SECRET_ACCESS_KEY_ID_2`).
const ANYWHERE: [&str; 6] =
    ["PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "SECRET", "PASSPHRASE"];

/// Words that make a name secret also when they are glued to its last part.
const GLUED: [&str; 7] =
    ["PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "APIKEY", "SSHPASS"];

/// Names that look secret and never are.
const HARMLESS: [&str; 5] = ["PWD", "OLDPWD", "KEY", "SSH_AUTH_SOCK", "GPG_KEY"];

/// Whether a variable's value has to be kept out of the record.
pub fn is_secret_name(name: &str) -> bool {
    if !has_a_stem(name) {
        return false;
    }
    let name = split_words(name);
    if HARMLESS.contains(&name.as_str()) {
        return false;
    }
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    // What comes after says that the value is about the secret, not the secret.
    let about = ["FILE", "PATH", "DIR", "URL", "NAME", "TYPE", "LENGTH", "TTL", "EXPIRY", "ID"];
    match words.last() {
        None => return false,
        Some(last) if about.contains(last) => return false,
        Some(last) if ENDINGS.contains(last) => return true,
        // `PGPASSWORD`, `GHTOKEN`
        Some(last) if GLUED.iter().any(|ending| last.ends_with(ending)) => return true,
        Some(_) => {}
    }
    words.iter().any(|word| ANYWHERE.contains(word))
}

/// Whether any of the words above can be in a name. Every variable of every run is asked about, and
/// hardly any has one.
fn has_a_stem(name: &str) -> bool {
    let name = name.as_bytes();
    (0..name.len()).any(|at| {
        let stems: &[&str] = match name[at].to_ascii_uppercase() {
            b'C' => &["CREDENTIAL"],
            b'K' => &["KEY"],
            b'P' => &["PASS", "PWD"],
            b'S' => &["SECRET"],
            b'T' => &["TOKEN"],
            _ => return false,
        };
        let here = |stem: &&str| name[at..].get(..stem.len());
        stems.iter().any(|stem| here(stem).is_some_and(|n| n.eq_ignore_ascii_case(stem.as_bytes())))
    })
}

/// Upper case with `_` between words, also where the name is written `likeThis` or `like-this`.
fn split_words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    let mut lower_before = false;
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && lower_before {
            words.push('_');
        }
        lower_before = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        words.push(if matches!(letter, '-' | '.') { '_' } else { letter.to_ascii_uppercase() });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name() {
        for name in [
            "API_KEY",
            "OPENAI_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "TOKEN",
            "PASSWORD",
            "DB_PASSWORD",
            "MYSQL_PWD",
            "PGPASSWORD",
            "npm_token",
            "MY_CREDENTIALS",
            "GOOGLE_CREDENTIAL_JSON",
            "SSH_PASSPHRASE",
            "apiToken",
            "SECRET",
            "DATABASE_PASSWD",
            "CLIENT_SECRET_2",
            "SECRET_KEY_BASE",
            "DB_PASS",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn every_word_has_a_stem() {
        for word in ENDINGS.iter().chain(&ANYWHERE).chain(&GLUED) {
            assert!(has_a_stem(word) && has_a_stem(&format!("x{}", word.to_lowercase())), "{word}");
        }
        assert!(!has_a_stem("PATH") && !has_a_stem("TERM_PROGRAM") && !has_a_stem("KE"));
    }

    #[test]
    fn other_names_are_left_alone() {
        for name in [
            "PATH",
            "HOME",
            "PWD",
            "OLDPWD",
            "SSH_AUTH_SOCK",
            "KEYBOARD",
            "XKB_KEYMAP",
            "MONKEY",
            "TOKENIZER",
            "KEY",
            "COMPASS",
            "BYPASS",
            "GPG_KEY",
            "TOKEN_FILE",
            "PASSWORD_FILE",
            "SECRET_NAME",
            "AWS_ACCESS_KEY_ID",
            "",
            "_",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
