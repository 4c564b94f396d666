use proptest::prelude::*;

use super::shapes::{Class, Kind};
use super::*;

fn redactor(secrets: &[(&str, &str)]) -> Redactor {
    let mut builder = Redactor::builder();
    for (name, value) in secrets {
        builder.secret(*name, value.as_bytes());
    }
    builder.build().unwrap()
}

fn in_pieces(redactor: &Redactor, text: &[u8], size: usize) -> (Vec<u8>, u64) {
    let mut stream = redactor.stream();
    let mut out = Vec::new();
    for piece in text.chunks(size.max(1)) {
        stream.push(piece, &mut |bytes| out.extend_from_slice(&bytes));
    }
    stream.finish(&mut |bytes| out.extend_from_slice(&bytes));
    assert_eq!(stream.held(), 0);
    (out, stream.count())
}

/// Every piece size gives the same text.
#[track_caller]
fn assert_redacts(redactor: &Redactor, text: &str, expected: &str) {
    for size in (1..=text.len().min(80)).chain([text.len()]) {
        let (out, _) = in_pieces(redactor, text.as_bytes(), size);
        assert_eq!(String::from_utf8_lossy(&out), expected, "in pieces of {size}");
    }
}

#[test]
fn values_are_replaced_by_their_names() {
    let redactor = redactor(&[("API_KEY", "hunter2-very-secret"), ("PIN", "12345")]);
    assert_redacts(
        &redactor,
        "key=hunter2-very-secret; pin=12345; hunter2-very-secrehunter2-very-secret",
        "key=[redacted:API_KEY]; pin=12345; hunter2-very-secre[redacted:API_KEY]",
    );
}

#[test]
fn a_secret_that_begins_another_does_not_leave_its_rest() {
    let mut secrets = [("A", "abcdef"), ("B", "abcdefghijkl")];
    for _ in 0..2 {
        let redactor = redactor(&secrets);
        assert_redacts(&redactor, "abcdefghijkl abcdefgh", "[redacted:B] [redacted:A]gh");
        secrets.reverse();
    }
}

#[test]
fn overlapping_secrets_go_whole() {
    let redactor = redactor(&[("A", "abcdefgh"), ("B", "efghijkl")]);
    assert_redacts(&redactor, "<abcdefghijkl>", "<[redacted:A]>");
    let periodic = self::redactor(&[("P", "ababab")]);
    assert_redacts(&periodic, "xabababababay", "x[redacted:P]ay");
}

#[test]
fn a_candidate_inside_a_longer_match_does_not_drop_the_longer_one() {
    let redactor = redactor(&[("A", "access_tokyo")]);
    assert_redacts(
        &redactor,
        "/x?access_token=abcdef123456 ?access_tokyo",
        "/x?access_token=[redacted:url-token] ?[redacted:A]",
    );
}

#[test]
fn a_secret_split_over_lines_is_still_one() {
    let redactor =
        redactor(&[("TOKEN", "first-line-1\nsecond-line-2"), ("KEY", "0123456789abcdef")]);
    for newline in ["\n", "\r\n", "\\n"] {
        let text = format!("<first-line-1{newline}second-line-2>");
        assert_redacts(&redactor, &text, "<[redacted:TOKEN]>");
    }
    assert_redacts(
        &redactor,
        "01234567\n89abcdef 0123\r\n456789abcdef",
        "[redacted:KEY] [redacted:KEY]",
    );
}

#[test]
fn long_lines_of_a_secret_go_on_their_own() {
    let redactor = redactor(&[("KEYS", "short\nthis-line-is-long-enough\n")]);
    assert_redacts(&redactor, "1: this-line-is-long-enough, short", "1: [redacted:KEYS], short");
}

#[test]
fn well_known_tokens_are_found_by_shape() {
    let redactor = redactor(&[]);
    let cases = [
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "github-token"),
        ("github_pat_11ABCDEFG0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", "github-token"),
        ("glpat-abcdefghij0123456789", "gitlab-token"),
        ("AKIAIOSFODNN7EXAMPLE", "aws-access-key"),
        ("xoxb-123456789012-abcdefghijkl", "slack-token"),
        ("sk-ant-api03-abcdefghijklmnopqrstuvwxyz", "anthropic-key"),
        ("sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD", "api-key"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "google-key"),
        ("npm_0123456789abcdefghijABCDEFGHIJ012345", "npm-token"),
        ("sk_live_0123456789abcdef", "stripe-key"),
        ("glrt-abcdefghij0123456789", "gitlab-token"),
        ("ASIAIOSFODNN7EXAMPLE", "aws-access-key"),
        ("xapp-1-A0123456789-0123456789", "slack-token"),
        ("sk-svcacct-abcdefghijklmnopqrstuvwxyz", "openai-key"),
        ("hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "huggingface-token"),
        ("dop_v1_0123456789abcdef0123456789abcdef0123456789abcdef", "digitalocean-token"),
        ("shpat_0123456789abcdef0123456789abcdef", "shopify-token"),
        ("SG.abcdefghijklmnopqrstuv.abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG", "sendgrid-key"),
        ("dckr_pat_abcdefghijklmnopqrstuvwxyz0", "docker-token"),
        ("rubygems_0123456789abcdef0123456789abcdef0123456789abcdef", "rubygems-key"),
        ("lin_api_0123456789abcdef0123456789abcdef01234567", "linear-key"),
        ("GOCSPX-abcdefghijklmnopqrstuvwxyz01", "google-oauth-secret"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.dBjftJeZ4CVP-mB92K27uhbUJU1p1r", "jwt"),
        ("glpat-abcdefghij0123456789abcdefg.01.0z1abcdef", "gitlab-token"),
        ("sk-or-v1-0123456789abcdef0123456789abcdef0123456789", "openrouter-key"),
        ("ntn_01234567890abcdefghijABCDEFGHIJ0123456789abcde", "notion-token"),
        ("nvapi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab-_cd", "nvidia-key"),
        ("sha256~0123456789abcdefghijABCDEFGHIJ0123456789-_abc", "openshift-token"),
        ("pscale_tkn_0123456789abcdefghijABCDEFGHIJ012345", "planetscale-token"),
        ("cio0123456789abcdefghijABCDEFGHIJ01", "crates-io-token"),
        ("dckr_oat_abcdefghijklmnopqrstuvwxyz0", "docker-token"),
        ("xoxc-123456789012-abcdefghijkl", "slack-token"),
        ("ATBB0123456789abcdefghijABCDEFGHIJ01", "bitbucket-password"),
        ("sgp_0123456789abcdef_0123456789abcdef0123456789abcdef01234567", "sourcegraph-token"),
        ("whsec_0123456789abcdefghijABCDEFGHIJ0123", "stripe-webhook-secret"),
        ("A3-ASWWYB-798JRYLJVD4-23DC2-86TVM-H43EB", "1password-key"),
        ("A3-ASWWYB-798JRY-LJVD4-23DC2-86TVM-H43EB", "1password-key"),
        (
            "patAbCdEfGh012345.0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "airtable-token",
        ),
        ("SK0123456789abcdef0123456789abcdef", "twilio-key"),
        ("A3TX2345ABCDEFGHIJKL", "aws-access-key"),
    ];
    for (token, name) in cases {
        let expected = format!("t={{[redacted:{name}]}} end");
        assert_redacts(&redactor, &format!("t={{{token}}} end"), &expected);
    }
}

/// The shortest text that matches a shape.
pub(super) fn sample(shape: &shapes::Shape) -> Vec<u8> {
    let body = |class, length| -> String {
        let letters = if class == Class::Hex { "7a29f4c0" } else { "Q7X2M9K4" };
        letters.chars().cycle().take(length).collect()
    };
    let rest = match shape.kind {
        Kind::Token(class, length) | Kind::Exact(class, length) | Kind::Value(class, length) => {
            body(class, length)
        }
        Kind::AfterDigit(class, length) => {
            return [b"8", shape.prefix, body(class, length).as_bytes()].concat();
        }
        Kind::Parts(separator, parts) => {
            let parts: Vec<_> = parts.iter().map(|&(class, length)| body(class, length)).collect();
            parts.join(&char::from(separator).to_string())
        }
        Kind::Jwt => "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.x".to_owned(),
        Kind::PrivateKey => "PRIVATE KEY-----\nMIIEpAIB\n-----END".to_owned(),
        Kind::UrlPassword => "u:pw1@h".to_owned(),
        Kind::Authorization => ": Bearer abcd1234".to_owned(),
    };
    [shape.prefix, rest.as_bytes()].concat()
}

/// Texts below the shortest length are not examined.
#[test]
fn the_shortest_secrets_are_found_in_texts_of_their_own() {
    for shape in &SHAPES {
        let text = sample(shape);
        assert!(text.len() >= SHORTEST, "{shape:?}");
        assert!(redactor(&[]).finds_secret(&text), "{shape:?}");
    }
    assert!(redactor(&[("NAME", "abcdef")]).finds_secret(b"abcdef"));
}

#[test]
fn a_token_may_follow_an_escape() {
    let redactor = redactor(&[]);
    let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    for before in [
        "{\"log\":\"first\\n",
        "\\t",
        "a\\u003d",
        "key%3D",
        "\\x3d",
        "\x1b[32m",
        "\x1b[1;38;5;120m",
        "\\u001b[1m",
        "\\033[0;1m",
        "\\e[m",
    ] {
        let expected = format!("{before}[redacted:github-token]\\n");
        assert_redacts(&redactor, &format!("{before}{token}\\n"), &expected);
    }
    for before in ["n", "xn", "3D", "[32m", "a[32m", "u003d", "\x1b[32mx", "_"] {
        let text = format!("{before}{token}");
        assert_redacts(&redactor, &text, &text);
    }
}

#[test]
fn every_shape_is_found_wherever_it_stands() {
    let redactor = redactor(&[]);
    let filler = b"error: it is (not) so, see line 12 of \"src/main.rs\" and x=1: ".repeat(9);
    for shape in &SHAPES {
        let (token, name) = (sample(shape), shape.name);
        for before in (0..150).chain([255, 256, 383, 500]) {
            let mut text = filler[filler.len() - before..].to_vec();
            text.push(b' ');
            text.extend(&token);
            text.extend(b" end of it");
            for size in [text.len(), 64, before + 3, before + 9] {
                let mut stream = redactor.stream();
                for piece in text.chunks(size) {
                    stream.push(piece, &mut |_| {});
                }
                stream.finish(&mut |_| {});
                let found = stream.redactions();
                assert!(
                    found.iter().any(|(found, _)| found == name),
                    "{name} after {before} bytes in pieces of {size}: {:?}",
                    String::from_utf8_lossy(&token)
                );
            }
        }
    }
}

#[test]
fn honest_output_is_left_alone() {
    let redactor = redactor(&[]);
    for text in [
        "task-force and disk-usage; https://example.org/a:b@c; eyJust a word",
        "AKIAIOSFODNN7EXAMPLEX and AKIAshort; ghp_short; -----BEGIN CERTIFICATE-----",
        "http://localhost:8080/path user@host:22 postgres://user@host/db sk-learn-is-a-library-for-ml",
        "------------------------------------------------------------------------",
    ] {
        assert_redacts(&redactor, text, text);
    }
}

#[test]
fn a_private_key_is_redacted_and_the_text_after_it_is_kept() {
    let redactor = redactor(&[]);
    let text = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n  q1w2e3/+==\n-----END RSA PRIVATE KEY-----\nb: c\n";
    assert_redacts(
        &redactor,
        text,
        "a\n[redacted:private-key]-----END RSA PRIVATE KEY-----\nb: c\n",
    );
}

#[test]
fn private_keys_of_other_programs_go_too() {
    let redactor = redactor(&[]);
    for (text, expected) in [
        (
            "a\n-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2.0 (x)\n\nlQHYBF/abc+\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----\nb: c.\n",
            "a\n[redacted:private-key]-----END PGP PRIVATE KEY BLOCK-----\nb: c.\n",
        ),
        (
            "PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 2\nAAAAgQDkW2Bx\nPrivate-MAC: 0123abcd\n;",
            "PuTTY-User-Key-File-[redacted:putty-key];",
        ),
        (
            "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nP2/56wAAAgIAAAAmZGwtbW9kcH0123456789\n.",
            "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----[redacted:private-key].",
        ),
    ] {
        assert_redacts(&redactor, text, expected);
    }
}

#[test]
fn a_password_in_a_url_is_redacted() {
    let redactor = redactor(&[]);
    assert_redacts(
        &redactor,
        "clone https://joe:s3cretpass@git.example.org/x.git ok",
        "clone https://joe:[redacted:url-password]@git.example.org/x.git ok",
    );
}

#[test]
fn credentials_are_found_by_their_context() {
    let redactor = redactor(&[]);
    for (text, expected) in [
        (
            "> Authorization: Bearer abc.def-123\r\n",
            "> Authorization: Bearer [redacted:authorization]\r\n",
        ),
        (
            "authorization: Basic dXNlcjpwYXNz ok",
            "authorization: Basic [redacted:authorization] ok",
        ),
        (
            "{'Authorization': 'Bearer abcdefgh12'}",
            "{'Authorization': 'Bearer [redacted:authorization]'}",
        ),
        (
            r#"{"authorization":"token abcdefgh12"}"#,
            r#"{"authorization":"token [redacted:authorization]"}"#,
        ),
        (
            "HTTP_AUTHORIZATION=Bearer abcdefgh12;",
            "HTTP_AUTHORIZATION=Bearer [redacted:authorization];",
        ),
        ("redis://:pa55@cache:6379/0", "redis://:[redacted:url-password]@cache:6379/0"),
        ("https://joe:p@ss:w@rd@host/x", "https://joe:[redacted:url-password]@host/x"),
        (
            r#"{"url":"https:\/\/joe:pa55word@host\/x@y"}"#,
            r#"{"url":"https:\/\/joe:[redacted:url-password]@host\/x@y"}"#,
        ),
        (
            r#"{"url":"/x?a=b\u0026access_token=abcdef123456"}"#,
            r#"{"url":"/x?a=b\u0026access_token=[redacted:url-token]"}"#,
        ),
        (
            "<a href='/x?a=b&amp;token=abcdef123456'>",
            "<a href='/x?a=b&amp;token=[redacted:url-token]'>",
        ),
        (
            "bot 123456789:AAF0aBcDeFgHiJkLmNoPqRsTuVwXyZ01234 ok",
            "bot 123456789[redacted:telegram-token] ok",
        ),
        (
            "https://0123456789abcdef0123456789abcdef01234567:x-oauth-basic@github.com/a/b",
            "https://[redacted:url-password]:x-oauth-basic@github.com/a/b",
        ),
        (
            "GET /x?access_token=abcdef123456&page=2",
            "GET /x?access_token=[redacted:url-token]&page=2",
        ),
        (
            "//registry.npmjs.org/:_authToken=0123456789abcdef-01",
            "//registry.npmjs.org/:_authToken=[redacted:npm-token]",
        ),
        (
            "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
            "https://hooks.slack.com/services/[redacted:slack-webhook]",
        ),
        (
            "x.webhook.office.com/webhookb2/a@b/IncomingWebhook/0123456789abcdef0123456789abcdef/c",
            "x.webhook.office.com/webhookb2/a@b/IncomingWebhook/[redacted:teams-webhook]",
        ),
        (
            "token abcdefghij0123.atlasv1.0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab;",
            "token abcdefghij0123.atlasv1.[redacted:terraform-token];",
        ),
    ] {
        assert_redacts(&redactor, text, expected);
    }
}

#[test]
fn random_looking_text_of_build_logs_is_not_redacted() {
    let redactor = redactor(&[]);
    for text in [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b, sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "id 018f3f6e-8d7a-7c3b-9f53-5b6f6f0f2a11 etag W/\"5e15153d-1a2b\"",
        "\"integrity\": \"sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==\"",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "See the Authorization header; Authorization: required; unauthorized: Bearer; authorization code flow",
        "usage: tool [--password PASSWORD] [--token TOKEN] https://user@example.org/ mongodb://$USER:$PASS@host",
        "warning: task-based sk-learn npm_config_cache=/x npm_lifecycle_event hf_hub ghp_token glpat- dapi",
        "https://example.org/?token=&page=1 https://example.org/?key=short -----BEGIN PUBLIC KEY-----",
        "--proxy <proxy>  in the form scheme://[user:passwd@]proxy.server:port",
        "curl -H 'Authorization: Bearer YOUR_TOKEN' -H 'Authorization: token OAUTH-TOKEN'",
        "12:AAAA, A3----------------------------------------, A3-1, pat.x, MASK0123456789abcdef",
        "4b1d0c3f5a6e7d8c9b0a1f2e3d4c5b6a7f8e9d0c SKIPPED 3Q~ eyJ",
        "eyJhbGciOiJIUzI1NiJ9 is only a header; SG.x; AKIA; xoxb-; hvs.; AGE-SECRET-KEY-",
    ] {
        assert_redacts(&redactor, text, text);
    }
}

#[test]
fn configured_patterns_see_lines() {
    let mut builder = Redactor::builder();
    builder.pattern("ticket", r"TCK-\d{4,}");
    let redactor = builder.build().unwrap();
    assert_redacts(
        &redactor,
        "a TCK-12345 b\nTCK-1\nTCK-9999",
        "a [redacted:ticket] b\nTCK-1\n[redacted:ticket]",
    );
    let long = format!("{}TCK-123456789", "x".repeat(200_000));
    let (out, count) = in_pieces(&redactor, long.as_bytes(), 7_000);
    assert_eq!((out.len(), count), (200_000 + "[redacted:ticket]".len(), 1));
    let error = Redactor::builder().pattern("bad", "(").build().unwrap_err().to_string();
    assert!(error.contains("`bad`"), "{error}");
}

#[test]
fn variables_are_judged_by_name_and_by_value() {
    use retake_types::TextRedactor;
    let mut redactor = redactor(&[("DB_PASSWORD", "correct-horse")]);
    let clean = |redactor: &mut Redactor, name: &str, value: &str| {
        let clean = redactor.redact_variable(name, value.as_bytes());
        clean.map(|clean| String::from_utf8(clean).unwrap())
    };
    assert_eq!(clean(&mut redactor, "MY_TOKEN", "whatever1").unwrap(), "[redacted:MY_TOKEN]");
    assert_eq!(clean(&mut redactor, "MY_TOKEN", "abc"), None);
    assert_eq!(clean(&mut redactor, "URL", "x=correct-horse").unwrap(), "x=[redacted:DB_PASSWORD]");
    assert_eq!(clean(&mut Redactor::off(), "MY_TOKEN", "whatever1"), None);
    assert_eq!(redactor.redact_str("nothing here").1, 0);
}

#[test]
fn each_replacement_is_counted_by_name() {
    let mut builder = Redactor::builder();
    builder.secret("API_KEY", b"hunter2-very-secret".as_slice()).pattern("ticket", r"TCK-\d{4,}");
    let mut stream = builder.build().unwrap().stream();
    let text = "hunter2-very-secret TCK-12345 AKIAIOSFODNN7EXAMPLE hunter2-very-secret\n";
    stream.push(text.as_bytes(), &mut |_| {});
    stream.finish(&mut |_| {});
    let by_name = stream.redactions();
    let by_name: Vec<_> = by_name.iter().collect();
    assert_eq!(by_name, [("API_KEY", 2), ("aws-access-key", 1), ("ticket", 1)]);
    assert_eq!(stream.count(), 4);
}

#[test]
fn more_secrets_than_the_vector_search_takes_still_work() {
    let secrets: Vec<(String, String)> =
        (0..1000).map(|i| (format!("S{i}"), format!("{i:04}-secret-{i}"))).collect();
    let mut builder = Redactor::builder();
    for (name, value) in &secrets {
        builder.secret(name, value.as_bytes());
    }
    let redactor = builder.build().unwrap();
    assert_redacts(
        &redactor,
        "a 0299-secret-299 b 0007-secret-7",
        "a [redacted:S299] b [redacted:S7]",
    );
}

proptest! {
    /// The naive definition: cover every occurrence, name maximal runs.
    #[test]
    fn random_secrets_never_survive_any_chunking(
        secrets in proptest::collection::vec("[ab]{6,9}|[a-c]{6,14}", 1..4),
        noise in proptest::collection::vec(("[ab]{0,12}", 0usize..8), 0..12),
        size in 1usize..40,
    ) {
        let mut builder = Redactor::builder();
        builder.without_shapes();
        for (index, secret) in secrets.iter().enumerate() {
            builder.secret(format!("S{index}"), secret.as_bytes());
        }
        let redactor = builder.build().unwrap();
        let mut text = String::new();
        for (filler, pick) in &noise {
            text.push_str(filler);
            if let Some(secret) = secrets.get(*pick) {
                text.push_str(secret);
            }
        }
        let (out, _) = in_pieces(&redactor, text.as_bytes(), size);
        let whole = in_pieces(&redactor, text.as_bytes(), text.len()).0;
        let mut covered = vec![false; text.len()];
        for secret in &secrets {
            for at in 0..text.len() {
                if text[at..].starts_with(secret.as_str()) {
                    covered[at..at + secret.len()].fill(true);
                }
            }
        }
        let honest: String =
            text.bytes().zip(&covered).filter(|(_, c)| !**c).map(|(b, _)| char::from(b)).collect();
        for out in [out, whole] {
            let mut rest = String::from_utf8(out).unwrap();
            for index in 0..secrets.len() {
                rest = rest.replace(&format!("[redacted:S{index}]"), "");
            }
            prop_assert_eq!(&rest, &honest);
        }
    }
}
