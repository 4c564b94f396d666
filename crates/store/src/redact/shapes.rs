//! Well-known token shapes: a fixed prefix, then enough characters of a class.
//!
//! A shape must be rare in ordinary output, so each requires its real minimum length and a word
//! boundary before it (`task-force` does not contain `sk-`).

/// A set of bytes that a token is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Letters and digits.
    Alphanumeric,
    Upper,
    Hex,
    /// And `_`, `-`.
    Word,
    /// And `.`.
    Dotted,
    /// Both base64 alphabets, and the other characters of bearer tokens.
    Credential,
    /// A value in a URL's query.
    Query,
    /// The body of a PEM block.
    Pem,
    /// The same for OpenPGP, whose headers are free text.
    Armor,
}

impl Class {
    pub(crate) fn has(self, byte: u8) -> bool {
        match self {
            Self::Alphanumeric => byte.is_ascii_alphanumeric(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
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
            // Base64 lines, with any indentation or escapes, and headers such as `DEK-Info:`.
            Self::Pem => {
                byte.is_ascii_alphanumeric()
                    || byte.is_ascii_whitespace()
                    || matches!(byte, b'+' | b'/' | b'=' | b'\\' | b'-' | b':' | b',')
            }
            Self::Armor => Self::Pem.has(byte) || b"._()<>@".contains(&byte),
        }
    }

    /// Whether a separate line ends it.
    pub(crate) fn is_key_block(self) -> bool {
        matches!(self, Self::Pem | Self::Armor)
    }

    /// How many bytes from the beginning belong to the class.
    pub(crate) fn run(self, bytes: &[u8]) -> usize {
        bytes.iter().position(|&byte| !self.has(byte)).unwrap_or(bytes.len())
    }

    /// How many bytes belong to an open token, and whether more may follow.
    pub(crate) fn extent(self, bytes: &[u8], last: bool) -> (usize, bool) {
        let run = self.run(bytes);
        if !self.is_key_block() {
            return (run, run == bytes.len() && !last);
        }
        // The line that ends a key is not secret, and shows where ordinary output continues.
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

pub(crate) const PEM_END: &[u8] = b"-----END";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) prefix: &'static [u8],
    pub(crate) kind: Kind,
    pub(crate) found_by: FoundBy,
}

/// Length of an anchor.
pub(crate) const ANCHOR: usize = 4;

/// The bytes by which a shape is found: see `shape_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// The bytes of the prefix from this offset on.
    Prefix(usize),
    /// A word in the line before a private key.
    KeyLine,
    /// The `@` after a user and a password.
    UserInfo,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Followed by at least this many bytes of the class.
    Token(Class, usize),
    /// Followed by exactly this many bytes, then another character.
    Exact(Class, usize),
    /// Followed by at least this many bytes; only they are secret, the prefix is a name.
    Value(Class, usize),
    /// Parts of exactly these lengths, separated by this byte.
    Parts(u8, &'static [(Class, usize)]),
    /// Followed by at least this many bytes; a digit precedes the prefix.
    AfterDigit(Class, usize),
    /// Three base64url parts, the second beginning like the first.
    Jwt,
    /// `-----BEGIN … PRIVATE KEY-----` and the key.
    PrivateKey,
    /// `scheme://user:password@host`.
    UrlPassword,
    /// `Authorization: Bearer …`, as a header or in JSON.
    Authorization,
}

const fn shape(name: &'static str, prefix: &'static [u8], kind: Kind) -> Shape {
    Shape { name, prefix, kind, found_by: FoundBy::Prefix(0) }
}

const ONE_PASSWORD: [(Class, usize); 5] = [
    (Class::Upper, 6),
    (Class::Upper, 11),
    (Class::Upper, 5),
    (Class::Upper, 5),
    (Class::Upper, 5),
];
const ONE_PASSWORD_OLD: [(Class, usize); 6] = [
    (Class::Upper, 6),
    (Class::Upper, 6),
    (Class::Upper, 5),
    (Class::Upper, 5),
    (Class::Upper, 5),
    (Class::Upper, 5),
];
const AIRTABLE: [(Class, usize); 2] = [(Class::Alphanumeric, 14), (Class::Hex, 64)];
const HARNESS: [(Class, usize); 3] =
    [(Class::Word, 22), (Class::Alphanumeric, 24), (Class::Alphanumeric, 20)];

/// The prefixes are documented by their vendors; see the public rules of gitleaks and
/// detect-secrets. Tokens without a prefix, recognisable only by their context, are left to
/// `redaction.patterns`.
pub(crate) const SHAPES: [Shape; 195] = [
    shape("github-token", b"ghp_", Kind::Token(Class::Alphanumeric, 36)),
    shape("github-token", b"gho_", Kind::Token(Class::Alphanumeric, 36)),
    shape("github-token", b"ghu_", Kind::Token(Class::Alphanumeric, 36)),
    shape("github-token", b"ghs_", Kind::Token(Class::Alphanumeric, 36)),
    shape("github-token", b"ghr_", Kind::Token(Class::Alphanumeric, 36)),
    shape("groq-key", b"gsk_", Kind::Token(Class::Alphanumeric, 40)),
    shape("npm-token", b"npm_", Kind::Token(Class::Alphanumeric, 36)),
    shape("digitalocean-token", b"dop_v1_", Kind::Token(Class::Alphanumeric, 40)),
    shape("digitalocean-token", b"doo_v1_", Kind::Token(Class::Alphanumeric, 40)),
    shape("digitalocean-token", b"dor_v1_", Kind::Token(Class::Alphanumeric, 40)).found_at(2),
    shape("supabase-token", b"sbp_", Kind::Token(Class::Alphanumeric, 40)),
    shape("gitlab-token", b"glpat-", Kind::Token(Class::Dotted, 20)),
    shape("gitlab-token", b"gldt-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glft-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glrt-", Kind::Token(Class::Dotted, 20)),
    shape("gitlab-token", b"glcbt-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glimt-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glptt-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glsoat-", Kind::Token(Class::Word, 20)),
    shape("gitlab-token", b"glagent-", Kind::Token(Class::Word, 40)),
    shape("gitlab-token", b"gloas-", Kind::Token(Class::Word, 40)),
    shape("gitlab-token", b"glffct-", Kind::Token(Class::Word, 20)),
    shape("grafana-token", b"glc_", Kind::Token(Class::Alphanumeric, 32)),
    shape("grafana-token", b"glsa_", Kind::Token(Class::Word, 32)),
    shape("slack-token", b"xoxb-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxp-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxa-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxr-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxs-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxe-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxo-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxe.", Kind::Token(Class::Dotted, 20)),
    shape("slack-token", b"xapp-", Kind::Token(Class::Word, 20)),
    shape("brevo-key", b"xkeysib-", Kind::Token(Class::Word, 64)),
    shape("xai-key", b"xai-", Kind::Token(Class::Alphanumeric, 60)),
    shape("shopify-token", b"shpat_", Kind::Token(Class::Alphanumeric, 32)),
    shape("shopify-token", b"shpca_", Kind::Token(Class::Alphanumeric, 32)),
    shape("shopify-token", b"shppa_", Kind::Token(Class::Alphanumeric, 32)),
    shape("shopify-token", b"shpss_", Kind::Token(Class::Alphanumeric, 32)),
    shape("square-token", b"sq0atp-", Kind::Token(Class::Word, 22)),
    shape("square-token", b"sq0csp-", Kind::Token(Class::Word, 22)),
    shape("aws-access-key", b"AKIA", Kind::Exact(Class::Upper, 16)),
    shape("aws-access-key", b"ASIA", Kind::Exact(Class::Upper, 16)),
    shape("aws-access-key", b"ABIA", Kind::Exact(Class::Upper, 16)),
    shape("aws-access-key", b"ACCA", Kind::Exact(Class::Upper, 16)),
    shape("aws-bedrock-key", b"ABSK", Kind::Token(Class::Credential, 100)),
    shape("google-key", b"AIza", Kind::Token(Class::Word, 35)),
    shape("google-oauth-secret", b"GOCSPX-", Kind::Token(Class::Word, 24)),
    shape("alibaba-key", b"LTAI", Kind::Exact(Class::Alphanumeric, 20)),
    shape("artifactory-key", b"AKCp", Kind::Token(Class::Alphanumeric, 60)),
    shape("heroku-key", b"HRKU-", Kind::Token(Class::Word, 36)),
    shape("postman-key", b"PMAK-", Kind::Token(Class::Word, 40)),
    shape("newrelic-key", b"NRAK-", Kind::Token(Class::Upper, 20)),
    shape("atlassian-token", b"ATATT3", Kind::Token(Class::Credential, 60)),
    shape("age-secret-key", b"AGE-SECRET-KEY-1", Kind::Token(Class::Upper, 50)).found_at(3),
    shape("gitlab-token", b"GR1348941", Kind::Token(Class::Word, 20)),
    shape("private-key", b"-----BEGIN ", Kind::PrivateKey).found_by(FoundBy::KeyLine),
    shape("api-key", b"sk-", Kind::Token(Class::Alphanumeric, 32)),
    shape("anthropic-key", b"sk-ant-", Kind::Token(Class::Word, 24)),
    shape("openai-key", b"sk-proj-", Kind::Token(Class::Word, 24)),
    shape("openai-key", b"sk-svcacct-", Kind::Token(Class::Word, 24)),
    shape("openai-key", b"sk-admin-", Kind::Token(Class::Word, 24)),
    shape("huggingface-token", b"hf_", Kind::Token(Class::Alphanumeric, 30)),
    shape("url-password", b"://", Kind::UrlPassword).found_by(FoundBy::UserInfo),
    // In JSON.
    shape("url-password", b":\\/\\/", Kind::UrlPassword).found_by(FoundBy::UserInfo),
    shape("sendgrid-key", b"SG.", Kind::Token(Class::Dotted, 60)),
    shape("jwt", b"eyJ", Kind::Jwt),
    shape("stripe-key", b"sk_live_", Kind::Token(Class::Alphanumeric, 16)),
    shape("stripe-key", b"sk_test_", Kind::Token(Class::Alphanumeric, 16)),
    shape("stripe-key", b"rk_live_", Kind::Token(Class::Alphanumeric, 16)),
    shape("stripe-key", b"rk_test_", Kind::Token(Class::Alphanumeric, 16)),
    shape("github-token", b"github_pat_", Kind::Token(Class::Word, 40)).found_at(6),
    shape("linear-key", b"lin_api_", Kind::Token(Class::Alphanumeric, 32)),
    shape("pypi-token", b"pypi-AgE", Kind::Token(Class::Word, 50)).found_at(4),
    shape("docker-token", b"dckr_pat_", Kind::Token(Class::Word, 20)),
    shape("google-token", b"ya29.", Kind::Token(Class::Word, 20)),
    shape("sentry-token", b"sntrys_", Kind::Token(Class::Credential, 40)),
    shape("sentry-token", b"sntryu_", Kind::Token(Class::Credential, 40)),
    shape("tailscale-key", b"tskey-", Kind::Token(Class::Word, 20)),
    shape("perplexity-key", b"pplx-", Kind::Token(Class::Alphanumeric, 40)),
    shape("rubygems-key", b"rubygems_", Kind::Token(Class::Alphanumeric, 40)).found_at(5),
    shape("databricks-token", b"dapi", Kind::Token(Class::Alphanumeric, 32)),
    shape("pulumi-token", b"pul-", Kind::Token(Class::Alphanumeric, 40)),
    shape("vault-token", b"hvs.", Kind::Token(Class::Word, 60)),
    shape("vault-token", b"hvb.", Kind::Token(Class::Word, 60)),
    shape("npm-token", b"_authToken=", Kind::Value(Class::Credential, 19)).found_at(7),
    shape("azure-storage-key", b"AccountKey=", Kind::Value(Class::Credential, 60)).found_at(7),
    shape("slack-webhook", b"hooks.slack.com/services/", Kind::Value(Class::Query, 30)).found_at(5),
    shape("url-token", b"?access_token=", Kind::Value(Class::Query, 8)).found_at(10),
    shape("url-token", b"?private_token=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("url-token", b"?token=", Kind::Value(Class::Query, 8)).found_at(3),
    shape("url-token", b"?api_key=", Kind::Value(Class::Query, 8)).found_at(5),
    shape("url-token", b"?apikey=", Kind::Value(Class::Query, 8)).found_at(4),
    shape("url-token", b"?client_secret=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("url-token", b"&access_token=", Kind::Value(Class::Query, 8)).found_at(10),
    shape("url-token", b"&private_token=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("url-token", b"&token=", Kind::Value(Class::Query, 8)).found_at(3),
    shape("url-token", b"&api_key=", Kind::Value(Class::Query, 8)).found_at(5),
    shape("url-token", b"&apikey=", Kind::Value(Class::Query, 8)).found_at(4),
    shape("url-token", b"&client_secret=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("gitlab-token", b"glwt-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxc-", Kind::Token(Class::Word, 20)),
    shape("slack-token", b"xoxd-", Kind::Token(Class::Credential, 20)),
    shape("1password-token", b"ops_eyJ", Kind::Token(Class::Credential, 200)).found_at(3),
    shape("adobe-secret", b"p8e-", Kind::Token(Class::Alphanumeric, 32)),
    shape("artifactory-token", b"cmVmd", Kind::Exact(Class::Alphanumeric, 59)),
    shape("aws-bedrock-key", b"bedrock-api-key-", Kind::Token(Class::Credential, 28)),
    shape("clojars-token", b"CLOJARS_", Kind::Token(Class::Alphanumeric, 60)),
    shape("cloudflare-key", b"v1.0-", Kind::Token(Class::Word, 160)).found_at(1),
    shape("crates-io-token", b"cio", Kind::Exact(Class::Alphanumeric, 32)),
    shape("defined-networking-token", b"dnkey-", Kind::Token(Class::Word, 60)),
    shape("docker-token", b"dckr_oat_", Kind::Token(Class::Word, 20)),
    shape("doppler-token", b"dp.pt.", Kind::Token(Class::Alphanumeric, 40)).found_at(2),
    shape("doppler-token", b"dp.st.", Kind::Token(Class::Dotted, 40)).found_at(2),
    shape("duffel-token", b"duffel_live_", Kind::Token(Class::Credential, 40)).found_at(3),
    shape("duffel-token", b"duffel_test_", Kind::Token(Class::Credential, 40)).found_at(3),
    shape("dynatrace-token", b"dt0c01.", Kind::Token(Class::Dotted, 80)),
    shape("easypost-key", b"EZAK", Kind::Token(Class::Alphanumeric, 54)),
    shape("easypost-key", b"EZTK", Kind::Token(Class::Alphanumeric, 54)),
    shape("facebook-token", b"EAAM", Kind::Token(Class::Alphanumeric, 100)),
    shape("facebook-token", b"EAAC", Kind::Token(Class::Alphanumeric, 100)),
    shape("flutterwave-key", b"FLWSECK_TEST-", Kind::Token(Class::Word, 12)),
    shape("flutterwave-key", b"FLWSECK-", Kind::Token(Class::Word, 32)),
    shape("fly-token", b"fo1_", Kind::Token(Class::Word, 43)),
    shape("fly-token", b"fm1a_", Kind::Token(Class::Credential, 100)),
    shape("fly-token", b"fm1r_", Kind::Token(Class::Credential, 100)),
    shape("fly-token", b"fm2_", Kind::Token(Class::Credential, 100)),
    shape("frameio-token", b"fio-u-", Kind::Token(Class::Credential, 60)),
    shape("gitlab-session", b"_gitlab_session=", Kind::Value(Class::Alphanumeric, 32)).found_at(5),
    shape("grafana-key", b"eyJrIjoi", Kind::Token(Class::Credential, 70)),
    shape("huggingface-token", b"api_org_", Kind::Token(Class::Alphanumeric, 30)).found_at(3),
    shape("infracost-key", b"ico-", Kind::Token(Class::Alphanumeric, 32)),
    shape("notion-token", b"ntn_", Kind::Token(Class::Alphanumeric, 40)),
    shape("nvidia-key", b"nvapi-", Kind::Token(Class::Word, 60)),
    shape("octopus-key", b"API-", Kind::Exact(Class::Upper, 26)),
    shape("openrouter-key", b"sk-or-v1-", Kind::Token(Class::Alphanumeric, 40)),
    shape("openshift-token", b"sha256~", Kind::Token(Class::Word, 43)).found_at(3),
    shape("planetscale-token", b"pscale_tkn_", Kind::Token(Class::Credential, 32)),
    shape("planetscale-token", b"pscale_oauth_", Kind::Token(Class::Credential, 32)),
    shape("planetscale-token", b"pscale_pw_", Kind::Token(Class::Credential, 32)),
    shape("prefect-key", b"pnu_", Kind::Token(Class::Alphanumeric, 36)),
    shape("readme-key", b"rdme_", Kind::Token(Class::Alphanumeric, 70)),
    shape("replicate-token", b"r8_", Kind::Token(Class::Alphanumeric, 37)),
    shape("scalingo-token", b"tk-us-", Kind::Token(Class::Word, 48)),
    shape("settlemint-token", b"sm_aat_", Kind::Token(Class::Alphanumeric, 16)).found_at(2),
    shape("settlemint-token", b"sm_pat_", Kind::Token(Class::Alphanumeric, 16)).found_at(2),
    shape("settlemint-token", b"sm_sat_", Kind::Token(Class::Alphanumeric, 16)).found_at(2),
    shape("shippo-token", b"shippo_live_", Kind::Token(Class::Alphanumeric, 40)).found_at(3),
    shape("shippo-token", b"shippo_test_", Kind::Token(Class::Alphanumeric, 40)).found_at(3),
    shape("sonar-token", b"squ_", Kind::Token(Class::Alphanumeric, 40)),
    shape("sonar-token", b"sqp_", Kind::Token(Class::Alphanumeric, 40)),
    shape("sonar-token", b"sqa_", Kind::Token(Class::Alphanumeric, 40)),
    shape("sourcegraph-token", b"sgp_", Kind::Token(Class::Word, 40)),
    shape("stripe-key", b"sk_prod_", Kind::Token(Class::Alphanumeric, 16)),
    shape("stripe-key", b"rk_prod_", Kind::Token(Class::Alphanumeric, 16)),
    shape("stripe-webhook-secret", b"whsec_", Kind::Token(Class::Credential, 32)),
    shape("supabase-token", b"sb_secret_", Kind::Token(Class::Word, 20)),
    shape("terraform-token", b"atlasv1.", Kind::Value(Class::Credential, 60)).found_at(3),
    shape("typeform-token", b"tfp_", Kind::Token(Class::Credential, 50)),
    shape("vault-token", b"hvr.", Kind::Token(Class::Word, 60)),
    shape("yandex-key", b"AQVN", Kind::Token(Class::Word, 35)),
    shape("atlassian-token", b"ATCTT3", Kind::Token(Class::Credential, 60)),
    shape("bitbucket-password", b"ATBB", Kind::Exact(Class::Alphanumeric, 32)),
    shape("slack-webhook", b"hooks.slack.com/workflows/", Kind::Value(Class::Query, 30))
        .found_at(5),
    shape("slack-webhook", b"hooks.slack.com/triggers/", Kind::Value(Class::Query, 30)).found_at(5),
    shape("teams-webhook", b"/IncomingWebhook/", Kind::Value(Class::Query, 32)).found_at(7),
    shape("putty-key", b"PuTTY-User-Key-File-", Kind::Value(Class::Armor, 32)),
    shape("private-key", b"SSH2 ENCRYPTED PRIVATE KEY ----", Kind::Value(Class::Pem, 32)),
    shape("aws-access-key", b"A3T", Kind::Exact(Class::Upper, 17)),
    shape("1password-key", b"A3-", Kind::Parts(b'-', &ONE_PASSWORD)),
    shape("1password-key", b"A3-", Kind::Parts(b'-', &ONE_PASSWORD_OLD)),
    shape("airtable-token", b"pat", Kind::Parts(b'.', &AIRTABLE)),
    shape("harness-key", b"pat.", Kind::Parts(b'.', &HARNESS)),
    shape("harness-key", b"sat.", Kind::Parts(b'.', &HARNESS)),
    shape("clickhouse-key", b"4b1d", Kind::Exact(Class::Alphanumeric, 38)),
    shape("intra42-secret", b"s-s4t2ud-", Kind::Token(Class::Hex, 64)),
    shape("intra42-secret", b"s-s4t2af-", Kind::Token(Class::Hex, 64)),
    shape("twilio-key", b"SK", Kind::Exact(Class::Hex, 32)),
    shape("telegram-token", b":AA", Kind::AfterDigit(Class::Word, 33)),
    shape("azure-secret", b"Q~", Kind::AfterDigit(Class::Query, 31)),
    shape("url-token", b";access_token=", Kind::Value(Class::Query, 8)).found_at(10),
    shape("url-token", b";private_token=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("url-token", b";token=", Kind::Value(Class::Query, 8)).found_at(3),
    shape("url-token", b";api_key=", Kind::Value(Class::Query, 8)).found_at(5),
    shape("url-token", b";apikey=", Kind::Value(Class::Query, 8)).found_at(4),
    shape("url-token", b";client_secret=", Kind::Value(Class::Query, 8)).found_at(11),
    shape("url-token", b"u0026access_token=", Kind::Value(Class::Query, 8)).found_at(14),
    shape("url-token", b"u0026private_token=", Kind::Value(Class::Query, 8)).found_at(15),
    shape("url-token", b"u0026token=", Kind::Value(Class::Query, 8)).found_at(7),
    shape("url-token", b"u0026api_key=", Kind::Value(Class::Query, 8)).found_at(9),
    shape("url-token", b"u0026apikey=", Kind::Value(Class::Query, 8)).found_at(8),
    shape("url-token", b"u0026client_secret=", Kind::Value(Class::Query, 8)).found_at(15),
    shape("url-token", b"#access_token=", Kind::Value(Class::Query, 8)).found_at(10),
    shape("authorization", b"uthorization", Kind::Authorization).found_at(3),
    shape("authorization", b"UTHORIZATION", Kind::Authorization),
];

impl Shape {
    const fn found_by(mut self, found_by: FoundBy) -> Self {
        self.found_by = found_by;
        self
    }

    /// Found by the bytes of the prefix from this offset on, which are rarer than the first ones.
    const fn found_at(self, offset: usize) -> Self {
        self.found_by(FoundBy::Prefix(offset))
    }

    /// Its anchor; shorter than four bytes if the body follows.
    pub(crate) fn anchor(&self) -> Option<&'static [u8]> {
        match self.found_by {
            FoundBy::Prefix(offset) => {
                let rest = &self.prefix[offset..];
                Some(&rest[..rest.len().min(ANCHOR)])
            }
            FoundBy::KeyLine => Some(b"VATE"),
            FoundBy::UserInfo => None,
        }
    }

    /// The bytes that may follow the prefix.
    pub(crate) fn following(&self) -> impl Iterator<Item = u8> {
        (0..=127).filter(|&byte| self.may_follow(byte))
    }

    /// A quick check whether the rest can follow the prefix.
    pub(crate) fn may_be_body(&self, rest: &[u8]) -> bool {
        match (self.kind, rest) {
            (_, []) => true,
            (Kind::Parts(separator, [(_, length), _, ..]), _) => {
                rest.get(*length).is_none_or(|byte| *byte == separator)
            }
            (_, [first, ..]) => self.may_follow(*first),
        }
    }

    /// Whether this byte may directly follow the prefix.
    pub(crate) fn may_follow(&self, byte: u8) -> bool {
        match self.kind {
            Kind::Token(class, _)
            | Kind::Exact(class, _)
            | Kind::Value(class, _)
            | Kind::AfterDigit(class, _) => class.has(byte),
            Kind::Parts(_, parts) => parts.iter().take(1).any(|(class, _)| class.has(byte)),
            Kind::Jwt => Class::Word.has(byte),
            Kind::PrivateKey | Kind::UrlPassword | Kind::Authorization => true,
        }
    }
}
