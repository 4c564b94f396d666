//! Decides by their names which variables are secret. Nothing here examines a value.

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

/// Words that make a name secret anywhere in it (`AWS_SECRET_ACCESS_KEY_ID_2`).
const ANYWHERE: [&str; 6] =
    ["PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "SECRET", "PASSPHRASE"];

/// Words that make a name secret even as a suffix of its last part.
const GLUED: [&str; 7] =
    ["PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "APIKEY", "SSHPASS"];

/// Names that look secret but are not.
const HARMLESS: [&str; 5] = ["PWD", "OLDPWD", "KEY", "SSH_AUTH_SOCK", "GPG_KEY"];

/// Last words of names that describe a secret and do not hold it.
const ABOUT: [&str; 11] =
    ["FILE", "PATH", "DIR", "URL", "NAME", "TYPE", "LENGTH", "TTL", "EXPIRY", "ID", "STDIN"];

/// Whether a variable's value must be kept out of the record.
pub fn is_secret_name(name: &str) -> bool {
    if !has_a_stem(name) {
        return false;
    }
    let name = split_words(name);
    if HARMLESS.contains(&name.as_str()) {
        return false;
    }
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    // A descriptive last word means that the value is not the secret itself.
    if words.last().is_none_or(|last| ABOUT.contains(last)) {
        return false;
    }
    if words.iter().any(|word| ANYWHERE.contains(word)) {
        return true;
    }
    // `API_KEY_2`, `DB_PASS2` and `ACCESS_TOKENS` are as secret as `API_KEY`, `DB_PASS` and
    // `ACCESS_TOKEN`.
    let numbered = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let Some(at) = words.iter().rposition(|word| !numbered(word)) else { return false };
    let last = words[at].trim_end_matches(|letter: char| letter.is_ascii_digit());
    let one = last.strip_suffix('S').unwrap_or(last);
    let is_secret = |last: &str| {
        let name = [&words[..at], &[last]].concat().join("_");
        // `PGPASSWORD`, `GHTOKEN`
        let ends = ENDINGS.contains(&last) || GLUED.iter().any(|ending| last.ends_with(ending));
        ends && !HARMLESS.contains(&name.as_str())
    };
    is_secret(last) || is_secret(one)
}

/// Whether the value of an option with this name, without dashes, is secret. Stricter than for
/// variables: `--sort-key` and `--no-password` have no secret.
pub(crate) fn is_secret_option(name: &str) -> bool {
    if !is_secret_name(name) {
        return false;
    }
    let name = split_words(name);
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    let kinds = [
        "API",
        "ACCESS",
        "ACCOUNT",
        "AUTH",
        "ENCRYPTION",
        "MASTER",
        "SECRET",
        "SHARED",
        "SIGNING",
        "STORAGE",
    ];
    match words[..] {
        [] | ["NO" | "WITHOUT" | "ASK" | "PROMPT" | "SKIP", ..] => false,
        // Plural: a list of names or a number, as `--max-tokens`.
        [.., "TOKENS" | "KEYS" | "PASS"] => false,
        [.., kind, "KEY"] => kinds.contains(&kind),
        ["MAX" | "MIN" | "NUM", ..] => false,
        _ => true,
    }
}

/// Whether any of the words above can occur in a name. Checked for every variable of every run, and
/// rarely true.
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

/// Upper case with `_` between words, also for names `likeThis` or `like-this`.
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
            "API_KEY2",
            "API_KEY_2",
            "GITHUB_TOKEN_1",
            "DB_PASS2",
            "OPENAI_API_KEYS",
            "ACCESS_TOKENS",
            "apiKey2",
            "MY_PASSWORDS",
            "TOKEN_01",
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
            "COMPASS2",
            "BYPASS_1",
            "KEY1",
            "KEYS",
            "PASSES",
            "TOKENIZERS_PARALLELISM",
            "MONKEYS",
            "SSH_KEY_PATH",
            "",
            "_",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
