//! Well-known shapes of tokens: a fixed beginning, then enough of the right characters.
//!
//! A shape must be rare in honest output, so each asks for its real minimum length and for a
//! boundary before it (`task-force` does not contain `sk-`).

/// What a candidate turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    No,
    /// Cannot be told before more bytes arrive.
    NeedMore,
    /// `start..end` is secret; an open end goes on while bytes are of the class.
    Found {
        start: usize,
        end: usize,
        open: Option<Class>,
    },
}

/// A set of bytes that a token is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Letters and digits.
    Alphanumeric,
    Upper,
    /// And `_`, `-`.
    Word,
    /// And `.`.
    Dotted,
    /// Base64 in both alphabets, and what else a bearer token may have.
    Credential,
    /// The value of a part of a URL.
    Query,
    /// The body of a PEM block.
    Pem,
    /// The same of OpenPGP, whose headers are free text.
    Armor,
}

impl Class {
    pub(crate) fn has(self, byte: u8) -> bool {
        match self {
            Self::Alphanumeric => byte.is_ascii_alphanumeric(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Word => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            Self::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'),
            Self::Credential => {
                byte.is_ascii_alphanumeric()
                    || matches!(byte, b'_' | b'-' | b'.' | b'~' | b'+' | b'/' | b'=')
            }
            Self::Query => {
                byte.is_ascii_alphanumeric()
                    || matches!(byte, b'_' | b'-' | b'.' | b'~' | b'%' | b'+' | b'/')
            }
            // The base64 lines, however indented or escaped, and headers such as `DEK-Info:`.
            Self::Pem => {
                byte.is_ascii_alphanumeric()
                    || byte.is_ascii_whitespace()
                    || matches!(byte, b'+' | b'/' | b'=' | b'\\' | b'-' | b':' | b',')
            }
            Self::Armor => Self::Pem.has(byte) || b"._()<>@".contains(&byte),
        }
    }

    /// Whether a line of its own ends it.
    pub(crate) fn is_key_block(self) -> bool {
        matches!(self, Self::Pem | Self::Armor)
    }

    /// How many bytes from the beginning belong to the class.
    fn run(self, bytes: &[u8]) -> usize {
        bytes.iter().position(|&byte| !self.has(byte)).unwrap_or(bytes.len())
    }

    /// How many bytes belong to a token that is open here, and whether more may follow.
    pub(crate) fn extent(self, bytes: &[u8], last: bool) -> (usize, bool) {
        let run = self.run(bytes);
        if !self.is_key_block() {
            return (run, run == bytes.len() && !last);
        }
        // The line that ends a key is no secret, and it tells where ordinary output goes on.
        if let Some(end) = memchr::memmem::find(&bytes[..run], PEM_END) {
            return (end, false);
        }
        if run < bytes.len() || last {
            return (run, false);
        }
        let cut = (1..PEM_END.len()).rev().find(|&length| bytes.ends_with(&PEM_END[..length]));
        (run - cut.unwrap_or(0), true)
    }
}

const PEM_END: &[u8] = b"-----END";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) prefix: &'static [u8],
    kind: Kind,
    pub(crate) found_by: FoundBy,
}

/// What is noticed of a shape: see `shape_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// A word begins with it, and it begins a long run.
    Word,
    /// It has a rare byte at this place.
    RareByte(usize),
    /// A long run follows it, after other parts of a path perhaps.
    BeforeRun,
    /// The line of a private key.
    KeyLine,
    /// The `@` after a user and a password.
    UserInfo,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// At least this many bytes of the class follow.
    Token(Class, usize),
    /// Exactly this many, then something else.
    Exact(Class, usize),
    /// At least this many, and only they are secret: the prefix says what they are.
    Value(Class, usize),
    /// Three base64url parts, the second beginning like the first.
    Jwt,
    /// `-----BEGIN … PRIVATE KEY-----` and what follows.
    PrivateKey,
    /// `scheme://user:password@host`.
    UrlPassword,
    /// `Authorization: Bearer …`, as a header or in JSON.
    Authorization,
}

const fn word(name: &'static str, prefix: &'static [u8], kind: Kind) -> Shape {
    Shape { name, prefix, kind, found_by: FoundBy::Word }
}

const fn value(name: &'static str, prefix: &'static [u8], kind: Kind, found_by: FoundBy) -> Shape {
    Shape { name, prefix, kind, found_by }
}

/// The prefixes are those that their makers document; see the public rules of gitleaks and
/// detect-secrets. Tokens without one, that only a regular expression over their context would
/// find, are left to `redaction.patterns`.
pub(crate) const SHAPES: [Shape; 169] = [
    word("github-token", b"ghp_", Kind::Token(Class::Alphanumeric, 36)),
    word("github-token", b"gho_", Kind::Token(Class::Alphanumeric, 36)),
    word("github-token", b"ghu_", Kind::Token(Class::Alphanumeric, 36)),
    word("github-token", b"ghs_", Kind::Token(Class::Alphanumeric, 36)),
    word("github-token", b"ghr_", Kind::Token(Class::Alphanumeric, 36)),
    word("groq-key", b"gsk_", Kind::Token(Class::Alphanumeric, 40)),
    word("npm-token", b"npm_", Kind::Token(Class::Alphanumeric, 36)),
    word("digitalocean-token", b"dop_v1_", Kind::Token(Class::Alphanumeric, 40)),
    word("digitalocean-token", b"doo_v1_", Kind::Token(Class::Alphanumeric, 40)),
    word("digitalocean-token", b"dor_v1_", Kind::Token(Class::Alphanumeric, 40)),
    word("supabase-token", b"sbp_", Kind::Token(Class::Alphanumeric, 40)),
    word("gitlab-token", b"glpat-", Kind::Token(Class::Dotted, 20)),
    word("gitlab-token", b"gldt-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glft-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glrt-", Kind::Token(Class::Dotted, 20)),
    word("gitlab-token", b"glcbt-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glimt-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glptt-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glsoat-", Kind::Token(Class::Word, 20)),
    word("gitlab-token", b"glagent-", Kind::Token(Class::Word, 40)),
    word("gitlab-token", b"gloas-", Kind::Token(Class::Word, 40)),
    word("gitlab-token", b"glffct-", Kind::Token(Class::Word, 20)),
    word("grafana-token", b"glc_", Kind::Token(Class::Alphanumeric, 32)),
    word("grafana-token", b"glsa_", Kind::Token(Class::Word, 32)),
    word("slack-token", b"xoxb-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxp-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxa-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxr-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxs-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxe-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxo-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxe.", Kind::Token(Class::Dotted, 20)),
    word("slack-token", b"xapp-", Kind::Token(Class::Word, 20)),
    word("brevo-key", b"xkeysib-", Kind::Token(Class::Word, 64)),
    word("xai-key", b"xai-", Kind::Token(Class::Alphanumeric, 60)),
    word("shopify-token", b"shpat_", Kind::Token(Class::Alphanumeric, 32)),
    word("shopify-token", b"shpca_", Kind::Token(Class::Alphanumeric, 32)),
    word("shopify-token", b"shppa_", Kind::Token(Class::Alphanumeric, 32)),
    word("shopify-token", b"shpss_", Kind::Token(Class::Alphanumeric, 32)),
    word("square-token", b"sq0atp-", Kind::Token(Class::Word, 22)),
    word("square-token", b"sq0csp-", Kind::Token(Class::Word, 22)),
    word("aws-access-key", b"AKIA", Kind::Exact(Class::Upper, 16)),
    word("aws-access-key", b"ASIA", Kind::Exact(Class::Upper, 16)),
    word("aws-access-key", b"ABIA", Kind::Exact(Class::Upper, 16)),
    word("aws-access-key", b"ACCA", Kind::Exact(Class::Upper, 16)),
    word("aws-bedrock-key", b"ABSK", Kind::Token(Class::Credential, 100)),
    word("google-key", b"AIza", Kind::Token(Class::Word, 35)),
    word("google-oauth-secret", b"GOCSPX-", Kind::Token(Class::Word, 24)),
    word("alibaba-key", b"LTAI", Kind::Exact(Class::Alphanumeric, 20)),
    word("artifactory-key", b"AKCp", Kind::Token(Class::Alphanumeric, 60)),
    word("heroku-key", b"HRKU-", Kind::Token(Class::Word, 36)),
    word("postman-key", b"PMAK-", Kind::Token(Class::Word, 40)),
    word("newrelic-key", b"NRAK-", Kind::Token(Class::Upper, 20)),
    word("atlassian-token", b"ATATT3", Kind::Token(Class::Credential, 60)),
    word("age-secret-key", b"AGE-SECRET-KEY-1", Kind::Token(Class::Upper, 50)),
    word("gitlab-token", b"GR1348941", Kind::Token(Class::Word, 20)),
    value("private-key", b"-----BEGIN ", Kind::PrivateKey, FoundBy::KeyLine),
    word("api-key", b"sk-", Kind::Token(Class::Alphanumeric, 32)),
    word("anthropic-key", b"sk-ant-", Kind::Token(Class::Word, 24)),
    word("openai-key", b"sk-proj-", Kind::Token(Class::Word, 24)),
    word("openai-key", b"sk-svcacct-", Kind::Token(Class::Word, 24)),
    word("openai-key", b"sk-admin-", Kind::Token(Class::Word, 24)),
    word("huggingface-token", b"hf_", Kind::Token(Class::Alphanumeric, 30)),
    value("url-password", b"://", Kind::UrlPassword, FoundBy::UserInfo),
    word("sendgrid-key", b"SG.", Kind::Token(Class::Dotted, 60)),
    word("jwt", b"eyJ", Kind::Jwt),
    word("stripe-key", b"sk_live_", Kind::Token(Class::Alphanumeric, 16)),
    word("stripe-key", b"sk_test_", Kind::Token(Class::Alphanumeric, 16)),
    word("stripe-key", b"rk_live_", Kind::Token(Class::Alphanumeric, 16)),
    word("stripe-key", b"rk_test_", Kind::Token(Class::Alphanumeric, 16)),
    word("github-token", b"github_pat_", Kind::Token(Class::Word, 40)),
    word("linear-key", b"lin_api_", Kind::Token(Class::Alphanumeric, 32)),
    word("pypi-token", b"pypi-AgE", Kind::Token(Class::Word, 50)),
    word("docker-token", b"dckr_pat_", Kind::Token(Class::Word, 20)),
    word("google-token", b"ya29.", Kind::Token(Class::Word, 20)),
    word("sentry-token", b"sntrys_", Kind::Token(Class::Credential, 40)),
    word("sentry-token", b"sntryu_", Kind::Token(Class::Credential, 40)),
    word("tailscale-key", b"tskey-", Kind::Token(Class::Word, 20)),
    word("perplexity-key", b"pplx-", Kind::Token(Class::Alphanumeric, 40)),
    word("rubygems-key", b"rubygems_", Kind::Token(Class::Alphanumeric, 40)),
    word("databricks-token", b"dapi", Kind::Token(Class::Alphanumeric, 32)),
    word("pulumi-token", b"pul-", Kind::Token(Class::Alphanumeric, 40)),
    word("vault-token", b"hvs.", Kind::Token(Class::Word, 60)),
    word("vault-token", b"hvb.", Kind::Token(Class::Word, 60)),
    value("npm-token", b"_authToken=", Kind::Value(Class::Credential, 19), FoundBy::BeforeRun),
    value(
        "azure-storage-key",
        b"AccountKey=",
        Kind::Value(Class::Credential, 60),
        FoundBy::BeforeRun,
    ),
    value(
        "slack-webhook",
        b"hooks.slack.com/services/",
        Kind::Value(Class::Query, 30),
        FoundBy::BeforeRun,
    ),
    value("url-token", b"?access_token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"?private_token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"?token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"?api_key=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"?apikey=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"?client_secret=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&access_token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&private_token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&token=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&api_key=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&apikey=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    value("url-token", b"&client_secret=", Kind::Value(Class::Query, 8), FoundBy::RareByte(0)),
    word("gitlab-token", b"glwt-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxc-", Kind::Token(Class::Word, 20)),
    word("slack-token", b"xoxd-", Kind::Token(Class::Credential, 20)),
    word("1password-token", b"ops_eyJ", Kind::Token(Class::Credential, 200)),
    word("adobe-secret", b"p8e-", Kind::Token(Class::Alphanumeric, 32)),
    word("artifactory-token", b"cmVmd", Kind::Exact(Class::Alphanumeric, 59)),
    word("aws-bedrock-key", b"bedrock-api-key-", Kind::Token(Class::Credential, 28)),
    word("clojars-token", b"CLOJARS_", Kind::Token(Class::Alphanumeric, 60)),
    word("cloudflare-key", b"v1.0-", Kind::Token(Class::Word, 160)),
    word("crates-io-token", b"cio", Kind::Exact(Class::Alphanumeric, 32)),
    word("defined-networking-token", b"dnkey-", Kind::Token(Class::Word, 60)),
    word("docker-token", b"dckr_oat_", Kind::Token(Class::Word, 20)),
    word("doppler-token", b"dp.pt.", Kind::Token(Class::Alphanumeric, 40)),
    word("doppler-token", b"dp.st.", Kind::Token(Class::Dotted, 40)),
    word("duffel-token", b"duffel_live_", Kind::Token(Class::Credential, 40)),
    word("duffel-token", b"duffel_test_", Kind::Token(Class::Credential, 40)),
    word("dynatrace-token", b"dt0c01.", Kind::Token(Class::Dotted, 80)),
    word("easypost-key", b"EZAK", Kind::Token(Class::Alphanumeric, 54)),
    word("easypost-key", b"EZTK", Kind::Token(Class::Alphanumeric, 54)),
    word("facebook-token", b"EAAM", Kind::Token(Class::Alphanumeric, 100)),
    word("facebook-token", b"EAAC", Kind::Token(Class::Alphanumeric, 100)),
    word("flutterwave-key", b"FLWSECK_TEST-", Kind::Token(Class::Word, 12)),
    word("flutterwave-key", b"FLWSECK-", Kind::Token(Class::Word, 32)),
    word("fly-token", b"fo1_", Kind::Token(Class::Word, 43)),
    word("fly-token", b"fm1a_", Kind::Token(Class::Credential, 100)),
    word("fly-token", b"fm1r_", Kind::Token(Class::Credential, 100)),
    word("fly-token", b"fm2_", Kind::Token(Class::Credential, 100)),
    word("frameio-token", b"fio-u-", Kind::Token(Class::Credential, 60)),
    value(
        "gitlab-session",
        b"_gitlab_session=",
        Kind::Value(Class::Alphanumeric, 32),
        FoundBy::BeforeRun,
    ),
    word("grafana-key", b"eyJrIjoi", Kind::Token(Class::Credential, 70)),
    word("huggingface-token", b"api_org_", Kind::Token(Class::Alphanumeric, 30)),
    word("infracost-key", b"ico-", Kind::Token(Class::Alphanumeric, 32)),
    word("notion-token", b"ntn_", Kind::Token(Class::Alphanumeric, 40)),
    word("nvidia-key", b"nvapi-", Kind::Token(Class::Word, 60)),
    word("octopus-key", b"API-", Kind::Exact(Class::Upper, 26)),
    word("openrouter-key", b"sk-or-v1-", Kind::Token(Class::Alphanumeric, 40)),
    value("openshift-token", b"sha256~", Kind::Token(Class::Word, 43), FoundBy::BeforeRun),
    word("planetscale-token", b"pscale_tkn_", Kind::Token(Class::Credential, 32)),
    word("planetscale-token", b"pscale_oauth_", Kind::Token(Class::Credential, 32)),
    word("planetscale-token", b"pscale_pw_", Kind::Token(Class::Credential, 32)),
    word("prefect-key", b"pnu_", Kind::Token(Class::Alphanumeric, 36)),
    word("readme-key", b"rdme_", Kind::Token(Class::Alphanumeric, 70)),
    word("replicate-token", b"r8_", Kind::Token(Class::Alphanumeric, 37)),
    word("scalingo-token", b"tk-us-", Kind::Token(Class::Word, 48)),
    word("settlemint-token", b"sm_aat_", Kind::Token(Class::Alphanumeric, 16)),
    word("settlemint-token", b"sm_pat_", Kind::Token(Class::Alphanumeric, 16)),
    word("settlemint-token", b"sm_sat_", Kind::Token(Class::Alphanumeric, 16)),
    word("shippo-token", b"shippo_live_", Kind::Token(Class::Alphanumeric, 40)),
    word("shippo-token", b"shippo_test_", Kind::Token(Class::Alphanumeric, 40)),
    word("sonar-token", b"squ_", Kind::Token(Class::Alphanumeric, 40)),
    word("sonar-token", b"sqp_", Kind::Token(Class::Alphanumeric, 40)),
    word("sonar-token", b"sqa_", Kind::Token(Class::Alphanumeric, 40)),
    word("sourcegraph-token", b"sgp_", Kind::Token(Class::Word, 40)),
    word("stripe-key", b"sk_prod_", Kind::Token(Class::Alphanumeric, 16)),
    word("stripe-key", b"rk_prod_", Kind::Token(Class::Alphanumeric, 16)),
    word("stripe-webhook-secret", b"whsec_", Kind::Token(Class::Credential, 32)),
    word("supabase-token", b"sb_secret_", Kind::Token(Class::Word, 20)),
    word("terraform-token", b"atlasv1.", Kind::Value(Class::Credential, 60)),
    word("typeform-token", b"tfp_", Kind::Token(Class::Credential, 50)),
    word("vault-token", b"hvr.", Kind::Token(Class::Word, 60)),
    word("yandex-key", b"AQVN", Kind::Token(Class::Word, 35)),
    word("atlassian-token", b"ATCTT3", Kind::Token(Class::Credential, 60)),
    word("bitbucket-password", b"ATBB", Kind::Exact(Class::Alphanumeric, 32)),
    value(
        "slack-webhook",
        b"hooks.slack.com/workflows/",
        Kind::Value(Class::Query, 30),
        FoundBy::BeforeRun,
    ),
    value(
        "slack-webhook",
        b"hooks.slack.com/triggers/",
        Kind::Value(Class::Query, 30),
        FoundBy::BeforeRun,
    ),
    value("teams-webhook", b"/IncomingWebhook/", Kind::Value(Class::Query, 32), FoundBy::BeforeRun),
    word("putty-key", b"PuTTY-User-Key-File-", Kind::Value(Class::Armor, 32)),
    value(
        "private-key",
        b"SSH2 ENCRYPTED PRIVATE KEY ----",
        Kind::Value(Class::Pem, 32),
        FoundBy::RareByte(2),
    ),
    value("authorization", b"uthorization", Kind::Authorization, FoundBy::RareByte(6)),
    value("authorization", b"UTHORIZATION", Kind::Authorization, FoundBy::RareByte(2)),
];

/// Longer user names and passwords than this are not looked for in a URL.
pub(crate) const USERINFO: usize = 512;
const SHORTEST_URL_PASSWORD: usize = 3;
/// The line before a private key is no longer than this.
pub(crate) const LONGEST_KEY_LINE: usize = 64;
/// A user name this long, without a password, is a token.
const LONG_USER: usize = 36;
const SHORTEST_CREDENTIAL: usize = 8;
const SHORTEST_JWT_PART: usize = 10;
/// A part this long without a dot is base64 of something else.
const LONGEST_JWT_PART: usize = 8 * 1024;

pub(crate) fn ends_userinfo(byte: u8) -> bool {
    matches!(byte, b'@' | b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
        || byte <= b' '
}

impl Shape {
    /// How much must follow the prefix, where that is all there is to it.
    #[cfg(test)]
    pub(crate) fn shortest_body(&self) -> Option<usize> {
        match self.kind {
            Kind::Token(_, minimum) | Kind::Exact(_, minimum) | Kind::Value(_, minimum) => {
                Some(minimum)
            }
            Kind::Jwt | Kind::PrivateKey | Kind::UrlPassword | Kind::Authorization => None,
        }
    }

    /// Judges the candidate whose prefix is at `at`. `last` says that no more bytes will come.
    pub(crate) fn judge(&self, bytes: &[u8], at: usize, before: Option<u8>, last: bool) -> Verdict {
        let body = at + self.prefix.len();
        let rest = &bytes[body..];
        let wait = |reached_end: bool| {
            if reached_end && !last { Verdict::NeedMore } else { Verdict::No }
        };
        let boundary = !before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        match self.kind {
            Kind::Token(class, minimum) if boundary => {
                let run = class.run(rest);
                if run < minimum {
                    return wait(run == rest.len());
                }
                let open = (run == rest.len() && !last).then_some(class);
                Verdict::Found { start: at, end: body + run, open }
            }
            Kind::Exact(class, length) if boundary => match class.run(rest) {
                run if run == rest.len() && run <= length && !last => Verdict::NeedMore,
                run if run == length => {
                    let followed = rest.get(run).is_some_and(u8::is_ascii_lowercase);
                    if followed {
                        Verdict::No
                    } else {
                        Verdict::Found { start: at, end: body + run, open: None }
                    }
                }
                _ => Verdict::No,
            },
            Kind::Value(class, minimum) => {
                let run = class.run(rest);
                if run < minimum {
                    return wait(run == rest.len());
                }
                let open = (run == rest.len() && !last).then_some(class);
                Verdict::Found { start: body, end: body + run, open }
            }
            Kind::Authorization => authorization(bytes, body, last),
            Kind::Jwt if boundary => jwt(bytes, at, last),
            Kind::PrivateKey => private_key(bytes, at, last),
            Kind::UrlPassword => url_password(bytes, at, last),
            Kind::Token(..) | Kind::Exact(..) | Kind::Jwt => Verdict::No,
        }
    }
}

fn jwt(bytes: &[u8], at: usize, last: bool) -> Verdict {
    let undecided = |end: usize, length: usize| {
        if end == bytes.len() && !last && length < LONGEST_JWT_PART {
            Verdict::NeedMore
        } else {
            Verdict::No
        }
    };
    let first = Class::Word.run(&bytes[at..]);
    let dot = at + first;
    if bytes.get(dot) != Some(&b'.') || first < SHORTEST_JWT_PART {
        return undecided(dot, first);
    }
    let second = &bytes[dot + 1..];
    let begins = second.len().min(3);
    if second[..begins] != b"eyJ"[..begins] {
        return Verdict::No;
    }
    let length = Class::Word.run(second);
    let end = dot + 1 + length;
    // The payload is the secret part: past its beginning there is nothing left to wait for, a
    // missing signature included.
    if length < SHORTEST_JWT_PART {
        return undecided(end, length);
    }
    let whole = Class::Dotted.run(&bytes[at..]);
    let open = (at + whole == bytes.len() && !last).then_some(Class::Dotted);
    Verdict::Found { start: at, end: at + whole, open }
}

fn private_key(bytes: &[u8], at: usize, last: bool) -> Verdict {
    // `-----BEGIN ` + up to four words + `PRIVATE KEY-----`, on one line.
    const END: &[u8] = b"PRIVATE KEY";
    const LONGEST: usize = LONGEST_KEY_LINE;
    let head = &bytes[at..bytes.len().min(at + LONGEST)];
    let line = head.iter().skip(11).position(|&byte| {
        !(byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b' ' | b'-'))
    });
    let line = &head[..line.map_or(head.len(), |end| end + 11)];
    let class = |after: &[u8]| match after {
        [b'-', b'-', b'-', b'-', b'-', ..] => Some((Class::Pem, 5)),
        _ if after.starts_with(b" BLOCK-----") => Some((Class::Armor, 11)),
        _ => None,
    };
    let found = memchr::memmem::find(line, END).map(|found| found + END.len());
    match found.and_then(|end| Some((end, class(&line[end..])?))) {
        Some((end, (class, dashes))) => {
            let body = at + end + dashes;
            let (run, more) = class.extent(&bytes[body..], last);
            Verdict::Found { start: at, end: body + run, open: more.then_some(class) }
        }
        None if line.len() == head.len() && head.len() < LONGEST && !last => Verdict::NeedMore,
        None => Verdict::No,
    }
}

fn url_password(bytes: &[u8], at: usize, last: bool) -> Verdict {
    let userinfo = at + 3;
    let window = &bytes[userinfo..bytes.len().min(userinfo + USERINFO)];
    let Some(end) = window.iter().position(|&byte| ends_userinfo(byte)) else {
        return if window.len() < USERINFO && !last { Verdict::NeedMore } else { Verdict::No };
    };
    if window[end] != b'@' {
        return Verdict::No;
    }
    let found = |secret: std::ops::Range<usize>| Verdict::Found {
        start: userinfo + secret.start,
        end: userinfo + secret.end,
        open: None,
    };
    match memchr::memchr(b':', &window[..end]) {
        // A token may also be the user, alone or with a password that is none.
        Some(colon) if &window[colon + 1..end] == b"x-oauth-basic" => found(0..colon),
        Some(colon) if is_password(&window[colon + 1..end]) => found(colon + 1..end),
        None if end >= LONG_USER && Class::Word.run(window) == end => found(0..end),
        _ => Verdict::No,
    }
}

/// Not what stands for a password in a template.
fn is_password(text: &[u8]) -> bool {
    text.len() >= SHORTEST_URL_PASSWORD
        && !matches!(text[0], b'$' | b'{' | b'*' | b'[')
        && !text.starts_with(b"%s")
}

/// After the word: a colon, a scheme, and the secret, in the quotes that JSON and Python put there.
fn authorization(bytes: &[u8], body: usize, last: bool) -> Verdict {
    const SCHEMES: [&[u8]; 5] = [b"bearer", b"basic", b"token", b"apikey", b"bot"];
    const LONGEST: usize = 32;
    let end = bytes.len();
    let wait = |at: usize| {
        if at >= end && !last && at - body < LONGEST { Verdict::NeedMore } else { Verdict::No }
    };
    let skip = |mut at: usize, of: &[u8]| {
        while at < end && at - body < LONGEST && of.contains(&bytes[at]) {
            at += 1;
        }
        at
    };
    let colon = skip(body, b"\"' \\");
    if bytes.get(colon).is_none_or(|byte| !b":=".contains(byte)) {
        return wait(colon);
    }
    let scheme = skip(colon + 1, b"\"' \t\\>:");
    let letters = bytes[scheme..].iter().take(LONGEST).take_while(|b| b.is_ascii_alphabetic());
    let after = scheme + letters.count();
    if after == end && !last {
        return wait(after);
    }
    let known = SCHEMES.iter().any(|name| bytes[scheme..after].eq_ignore_ascii_case(name));
    let value = if known { skip(after, b" \t") } else { return Verdict::No };
    let run = Class::Credential.run(&bytes[value..]);
    if run < SHORTEST_CREDENTIAL {
        return if value + run == end && !last { Verdict::NeedMore } else { Verdict::No };
    }
    let open = (value + run == end && !last).then_some(Class::Credential);
    Verdict::Found { start: value, end: value + run, open }
}
