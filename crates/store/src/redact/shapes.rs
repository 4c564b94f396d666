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
    /// Anchors that are alike share a group, of which there are eight: see `shape_filter`.
    pub(crate) group: usize,
    /// Where in the prefix the four bytes are that it is found by.
    pub(crate) offset: usize,
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

const fn shape(
    name: &'static str,
    prefix: &'static [u8],
    kind: Kind,
    group: usize,
    offset: usize,
) -> Shape {
    Shape { name, prefix, kind, group, offset }
}

/// The prefixes are those that their makers document; see the public rules of gitleaks and
/// detect-secrets. Tokens without one, that only a regular expression over their context would
/// find, are left to `redaction.patterns`.
pub(crate) const SHAPES: [Shape; 169] = [
    shape("github-token", b"ghp_", Kind::Token(Class::Alphanumeric, 36), 1, 0),
    shape("github-token", b"gho_", Kind::Token(Class::Alphanumeric, 36), 1, 0),
    shape("github-token", b"ghu_", Kind::Token(Class::Alphanumeric, 36), 0, 0),
    shape("github-token", b"ghs_", Kind::Token(Class::Alphanumeric, 36), 0, 0),
    shape("github-token", b"ghr_", Kind::Token(Class::Alphanumeric, 36), 0, 0),
    shape("groq-key", b"gsk_", Kind::Token(Class::Alphanumeric, 40), 2, 0),
    shape("npm-token", b"npm_", Kind::Token(Class::Alphanumeric, 36), 2, 0),
    shape("digitalocean-token", b"dop_v1_", Kind::Token(Class::Alphanumeric, 40), 1, 0),
    shape("digitalocean-token", b"doo_v1_", Kind::Token(Class::Alphanumeric, 40), 1, 0),
    shape("digitalocean-token", b"dor_v1_", Kind::Token(Class::Alphanumeric, 40), 1, 0),
    shape("supabase-token", b"sbp_", Kind::Token(Class::Alphanumeric, 40), 3, 0),
    shape("gitlab-token", b"glpat-", Kind::Token(Class::Dotted, 20), 2, 0),
    shape("gitlab-token", b"gldt-", Kind::Token(Class::Word, 20), 2, 0),
    shape("gitlab-token", b"glft-", Kind::Token(Class::Word, 20), 2, 0),
    shape("gitlab-token", b"glrt-", Kind::Token(Class::Dotted, 20), 2, 0),
    shape("gitlab-token", b"glcbt-", Kind::Token(Class::Word, 20), 2, 0),
    shape("gitlab-token", b"glimt-", Kind::Token(Class::Word, 20), 0, 0),
    shape("gitlab-token", b"glptt-", Kind::Token(Class::Word, 20), 2, 0),
    shape("gitlab-token", b"glsoat-", Kind::Token(Class::Word, 20), 2, 0),
    shape("gitlab-token", b"glagent-", Kind::Token(Class::Word, 40), 0, 0),
    shape("gitlab-token", b"gloas-", Kind::Token(Class::Word, 40), 0, 0),
    shape("gitlab-token", b"glffct-", Kind::Token(Class::Word, 20), 0, 0),
    shape("grafana-token", b"glc_", Kind::Token(Class::Alphanumeric, 32), 0, 0),
    shape("grafana-token", b"glsa_", Kind::Token(Class::Word, 32), 2, 0),
    shape("slack-token", b"xoxb-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxp-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxa-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxr-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxs-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxe-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxo-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxe.", Kind::Token(Class::Dotted, 20), 3, 0),
    shape("slack-token", b"xapp-", Kind::Token(Class::Word, 20), 3, 0),
    shape("brevo-key", b"xkeysib-", Kind::Token(Class::Word, 64), 0, 0),
    shape("xai-key", b"xai-", Kind::Token(Class::Alphanumeric, 60), 0, 0),
    shape("shopify-token", b"shpat_", Kind::Token(Class::Alphanumeric, 32), 3, 0),
    shape("shopify-token", b"shpca_", Kind::Token(Class::Alphanumeric, 32), 3, 0),
    shape("shopify-token", b"shppa_", Kind::Token(Class::Alphanumeric, 32), 3, 0),
    shape("shopify-token", b"shpss_", Kind::Token(Class::Alphanumeric, 32), 3, 0),
    shape("square-token", b"sq0atp-", Kind::Token(Class::Word, 22), 3, 0),
    shape("square-token", b"sq0csp-", Kind::Token(Class::Word, 22), 3, 0),
    shape("aws-access-key", b"AKIA", Kind::Exact(Class::Upper, 16), 4, 0),
    shape("aws-access-key", b"ASIA", Kind::Exact(Class::Upper, 16), 7, 0),
    shape("aws-access-key", b"ABIA", Kind::Exact(Class::Upper, 16), 4, 0),
    shape("aws-access-key", b"ACCA", Kind::Exact(Class::Upper, 16), 4, 0),
    shape("aws-bedrock-key", b"ABSK", Kind::Token(Class::Credential, 100), 4, 0),
    shape("google-key", b"AIza", Kind::Token(Class::Word, 35), 4, 0),
    shape("google-oauth-secret", b"GOCSPX-", Kind::Token(Class::Word, 24), 4, 0),
    shape("alibaba-key", b"LTAI", Kind::Exact(Class::Alphanumeric, 20), 7, 0),
    shape("artifactory-key", b"AKCp", Kind::Token(Class::Alphanumeric, 60), 4, 0),
    shape("heroku-key", b"HRKU-", Kind::Token(Class::Word, 36), 5, 0),
    shape("postman-key", b"PMAK-", Kind::Token(Class::Word, 40), 7, 0),
    shape("newrelic-key", b"NRAK-", Kind::Token(Class::Upper, 20), 7, 0),
    shape("atlassian-token", b"ATATT3", Kind::Token(Class::Credential, 60), 1, 0),
    shape("age-secret-key", b"AGE-SECRET-KEY-1", Kind::Token(Class::Upper, 50), 4, 0),
    shape("gitlab-token", b"GR1348941", Kind::Token(Class::Word, 20), 1, 0),
    shape("private-key", b"-----BEGIN ", Kind::PrivateKey, 4, 5),
    shape("api-key", b"sk-", Kind::Token(Class::Alphanumeric, 32), 5, 0),
    shape("anthropic-key", b"sk-ant-", Kind::Token(Class::Word, 24), 5, 0),
    shape("openai-key", b"sk-proj-", Kind::Token(Class::Word, 24), 5, 0),
    shape("openai-key", b"sk-svcacct-", Kind::Token(Class::Word, 24), 5, 0),
    shape("openai-key", b"sk-admin-", Kind::Token(Class::Word, 24), 5, 0),
    shape("huggingface-token", b"hf_", Kind::Token(Class::Alphanumeric, 30), 5, 0),
    shape("url-password", b"://", Kind::UrlPassword, 6, 0),
    shape("sendgrid-key", b"SG.", Kind::Token(Class::Dotted, 60), 6, 0),
    shape("jwt", b"eyJ", Kind::Jwt, 6, 0),
    shape("stripe-key", b"sk_live_", Kind::Token(Class::Alphanumeric, 16), 7, 1),
    shape("stripe-key", b"sk_test_", Kind::Token(Class::Alphanumeric, 16), 6, 1),
    shape("stripe-key", b"rk_live_", Kind::Token(Class::Alphanumeric, 16), 7, 1),
    shape("stripe-key", b"rk_test_", Kind::Token(Class::Alphanumeric, 16), 6, 1),
    shape("github-token", b"github_pat_", Kind::Token(Class::Word, 40), 7, 5),
    shape("linear-key", b"lin_api_", Kind::Token(Class::Alphanumeric, 32), 7, 2),
    shape("pypi-token", b"pypi-AgE", Kind::Token(Class::Word, 50), 7, 3),
    shape("docker-token", b"dckr_pat_", Kind::Token(Class::Word, 20), 2, 0),
    shape("google-token", b"ya29.", Kind::Token(Class::Word, 20), 0, 0),
    shape("sentry-token", b"sntrys_", Kind::Token(Class::Credential, 40), 5, 0),
    shape("sentry-token", b"sntryu_", Kind::Token(Class::Credential, 40), 5, 0),
    shape("tailscale-key", b"tskey-", Kind::Token(Class::Word, 20), 2, 0),
    shape("perplexity-key", b"pplx-", Kind::Token(Class::Alphanumeric, 40), 3, 0),
    shape("rubygems-key", b"rubygems_", Kind::Token(Class::Alphanumeric, 40), 0, 3),
    shape("databricks-token", b"dapi", Kind::Token(Class::Alphanumeric, 32), 7, 0),
    shape("pulumi-token", b"pul-", Kind::Token(Class::Alphanumeric, 40), 3, 0),
    shape("vault-token", b"hvs.", Kind::Token(Class::Word, 60), 2, 0),
    shape("vault-token", b"hvb.", Kind::Token(Class::Word, 60), 2, 0),
    shape("npm-token", b"_authToken=", Kind::Value(Class::Credential, 16), 5, 3),
    shape("azure-storage-key", b"AccountKey=", Kind::Value(Class::Credential, 60), 2, 5),
    shape("slack-webhook", b"hooks.slack.com/services/", Kind::Value(Class::Query, 30), 4, 4),
    shape("url-token", b"?access_token=", Kind::Value(Class::Query, 8), 1, 10),
    shape("url-token", b"?private_token=", Kind::Value(Class::Query, 8), 1, 11),
    shape("url-token", b"?token=", Kind::Value(Class::Query, 8), 1, 3),
    shape("url-token", b"?api_key=", Kind::Value(Class::Query, 8), 1, 5),
    shape("url-token", b"?apikey=", Kind::Value(Class::Query, 8), 1, 4),
    shape("url-token", b"?client_secret=", Kind::Value(Class::Query, 8), 1, 11),
    shape("url-token", b"&access_token=", Kind::Value(Class::Query, 8), 1, 10),
    shape("url-token", b"&private_token=", Kind::Value(Class::Query, 8), 1, 11),
    shape("url-token", b"&token=", Kind::Value(Class::Query, 8), 1, 3),
    shape("url-token", b"&api_key=", Kind::Value(Class::Query, 8), 1, 5),
    shape("url-token", b"&apikey=", Kind::Value(Class::Query, 8), 1, 4),
    shape("url-token", b"&client_secret=", Kind::Value(Class::Query, 8), 1, 11),
    shape("gitlab-token", b"glwt-", Kind::Token(Class::Word, 20), 2, 0),
    shape("slack-token", b"xoxc-", Kind::Token(Class::Word, 20), 3, 0),
    shape("slack-token", b"xoxd-", Kind::Token(Class::Credential, 20), 3, 0),
    shape("1password-token", b"ops_eyJ", Kind::Token(Class::Credential, 200), 0, 0),
    shape("adobe-secret", b"p8e-", Kind::Token(Class::Alphanumeric, 32), 0, 0),
    shape("artifactory-token", b"cmVmd", Kind::Exact(Class::Alphanumeric, 59), 0, 0),
    shape("aws-bedrock-key", b"bedrock-api-key-", Kind::Token(Class::Credential, 28), 0, 0),
    shape("clojars-token", b"CLOJARS_", Kind::Token(Class::Alphanumeric, 60), 0, 0),
    shape("cloudflare-key", b"v1.0-", Kind::Token(Class::Word, 160), 0, 0),
    shape("crates-io-token", b"cio", Kind::Exact(Class::Alphanumeric, 32), 0, 0),
    shape("defined-networking-token", b"dnkey-", Kind::Token(Class::Word, 60), 0, 0),
    shape("docker-token", b"dckr_oat_", Kind::Token(Class::Word, 20), 0, 0),
    shape("doppler-token", b"dp.pt.", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("doppler-token", b"dp.st.", Kind::Token(Class::Dotted, 40), 0, 0),
    shape("duffel-token", b"duffel_live_", Kind::Token(Class::Credential, 40), 0, 0),
    shape("duffel-token", b"duffel_test_", Kind::Token(Class::Credential, 40), 0, 0),
    shape("dynatrace-token", b"dt0c01.", Kind::Token(Class::Dotted, 80), 0, 0),
    shape("easypost-key", b"EZAK", Kind::Token(Class::Alphanumeric, 54), 0, 0),
    shape("easypost-key", b"EZTK", Kind::Token(Class::Alphanumeric, 54), 0, 0),
    shape("facebook-token", b"EAAM", Kind::Token(Class::Alphanumeric, 100), 0, 0),
    shape("facebook-token", b"EAAC", Kind::Token(Class::Alphanumeric, 100), 0, 0),
    shape("flutterwave-key", b"FLWSECK_TEST-", Kind::Token(Class::Word, 12), 0, 0),
    shape("flutterwave-key", b"FLWSECK-", Kind::Token(Class::Word, 32), 0, 0),
    shape("fly-token", b"fo1_", Kind::Token(Class::Word, 43), 0, 0),
    shape("fly-token", b"fm1a_", Kind::Token(Class::Credential, 100), 0, 0),
    shape("fly-token", b"fm1r_", Kind::Token(Class::Credential, 100), 0, 0),
    shape("fly-token", b"fm2_", Kind::Token(Class::Credential, 100), 0, 0),
    shape("frameio-token", b"fio-u-", Kind::Token(Class::Credential, 60), 0, 0),
    shape("gitlab-session", b"_gitlab_session=", Kind::Value(Class::Alphanumeric, 32), 0, 0),
    shape("grafana-key", b"eyJrIjoi", Kind::Token(Class::Credential, 70), 6, 0),
    shape("huggingface-token", b"api_org_", Kind::Token(Class::Alphanumeric, 30), 0, 0),
    shape("infracost-key", b"ico-", Kind::Token(Class::Alphanumeric, 32), 0, 0),
    shape("notion-token", b"ntn_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("nvidia-key", b"nvapi-", Kind::Token(Class::Word, 60), 0, 0),
    shape("octopus-key", b"API-", Kind::Exact(Class::Upper, 26), 0, 0),
    shape("openrouter-key", b"sk-or-v1-", Kind::Token(Class::Alphanumeric, 40), 5, 0),
    shape("openshift-token", b"sha256~", Kind::Token(Class::Word, 43), 0, 0),
    shape("planetscale-token", b"pscale_tkn_", Kind::Token(Class::Credential, 32), 0, 0),
    shape("planetscale-token", b"pscale_oauth_", Kind::Token(Class::Credential, 32), 0, 0),
    shape("planetscale-token", b"pscale_pw_", Kind::Token(Class::Credential, 32), 0, 0),
    shape("prefect-key", b"pnu_", Kind::Token(Class::Alphanumeric, 36), 0, 0),
    shape("readme-key", b"rdme_", Kind::Token(Class::Alphanumeric, 70), 0, 0),
    shape("replicate-token", b"r8_", Kind::Token(Class::Alphanumeric, 37), 0, 0),
    shape("scalingo-token", b"tk-us-", Kind::Token(Class::Word, 48), 0, 0),
    shape("settlemint-token", b"sm_aat_", Kind::Token(Class::Alphanumeric, 16), 0, 0),
    shape("settlemint-token", b"sm_pat_", Kind::Token(Class::Alphanumeric, 16), 0, 0),
    shape("settlemint-token", b"sm_sat_", Kind::Token(Class::Alphanumeric, 16), 0, 0),
    shape("shippo-token", b"shippo_live_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("shippo-token", b"shippo_test_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("sonar-token", b"squ_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("sonar-token", b"sqp_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("sonar-token", b"sqa_", Kind::Token(Class::Alphanumeric, 40), 0, 0),
    shape("sourcegraph-token", b"sgp_", Kind::Token(Class::Word, 40), 0, 0),
    shape("stripe-key", b"sk_prod_", Kind::Token(Class::Alphanumeric, 16), 0, 0),
    shape("stripe-key", b"rk_prod_", Kind::Token(Class::Alphanumeric, 16), 0, 0),
    shape("stripe-webhook-secret", b"whsec_", Kind::Token(Class::Credential, 32), 0, 0),
    shape("supabase-token", b"sb_secret_", Kind::Token(Class::Word, 20), 0, 0),
    shape("terraform-token", b".atlasv1.", Kind::Value(Class::Credential, 60), 0, 0),
    shape("typeform-token", b"tfp_", Kind::Token(Class::Credential, 50), 0, 0),
    shape("vault-token", b"hvr.", Kind::Token(Class::Word, 60), 2, 0),
    shape("yandex-key", b"AQVN", Kind::Token(Class::Word, 35), 0, 0),
    shape("atlassian-token", b"ATCTT3", Kind::Token(Class::Credential, 60), 1, 0),
    shape("bitbucket-password", b"ATBB", Kind::Exact(Class::Alphanumeric, 32), 1, 0),
    shape("slack-webhook", b"hooks.slack.com/workflows/", Kind::Value(Class::Query, 30), 4, 4),
    shape("slack-webhook", b"hooks.slack.com/triggers/", Kind::Value(Class::Query, 30), 4, 4),
    shape("teams-webhook", b"/IncomingWebhook/", Kind::Value(Class::Query, 32), 0, 0),
    shape("putty-key", b"Private-Lines: ", Kind::Value(Class::Pem, 32), 0, 0),
    shape("private-key", b"SSH2 ENCRYPTED PRIVATE KEY ----", Kind::Value(Class::Pem, 32), 0, 0),
    shape("authorization", b"uthorization", Kind::Authorization, 0, 2),
    shape("authorization", b"UTHORIZATION", Kind::Authorization, 0, 2),
];

/// Longer user names and passwords than this are not looked for in a URL.
const USERINFO: usize = 512;
const SHORTEST_URL_PASSWORD: usize = 3;
/// A user name this long, without a password, is a token.
const LONG_USER: usize = 36;
const SHORTEST_CREDENTIAL: usize = 8;
const SHORTEST_JWT_PART: usize = 10;
/// A part this long without a dot is base64 of something else.
const LONGEST_JWT_PART: usize = 8 * 1024;

fn ends_userinfo(byte: u8) -> bool {
    matches!(byte, b'@' | b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
        || byte <= b' '
}

impl Shape {
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
    const LONGEST: usize = 64;
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
