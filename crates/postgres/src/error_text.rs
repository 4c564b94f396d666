//! Errors of a database, and advice about them.

use postgres::error::SqlState;

/// An error with all its sources: the outer message often says only that there was an error.
pub(super) fn in_full(error: &postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return format!("{} ({})", said.message(), said.code().code());
    }
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// Connecting failed: the server did not answer, or refused the connection.
pub(super) fn not_connected(error: &postgres::Error) -> String {
    const PASSWORD: &str = "the password comes from $PGPASSWORD or ~/.pgpass (mode 600)";
    let text = in_full(error);
    if let Some(code) = error.code() {
        let hint = match code {
            code if *code == SqlState::INVALID_PASSWORD => PASSWORD,
            code if *code == SqlState::INVALID_CATALOG_NAME => "create it with `createdb`",
            _ => return format!("the database refuses the connection: {text}"),
        };
        return format!("the database refuses the connection: {text}; {hint}");
    }
    if text.contains("password missing") {
        return format!("the database requires a password, and none is given; {PASSWORD}");
    }
    match certificate(&text) {
        Some(hint) => format!("the database is not trusted: {text}; {hint}"),
        None => format!("the database cannot be reached: {text}"),
    }
}

/// Advice about a certificate that is not trusted.
fn certificate(text: &str) -> Option<&'static str> {
    const HINTS: [(&str, &str); 4] = [
        (
            "CaUsedAsEndEntity",
            "its certificate signed itself; PGSSLROOTCERT must name a file with that very certificate",
        ),
        ("UnknownIssuer", "PGSSLROOTCERT names the file with the certificate that signed its own"),
        (
            "not valid for name",
            "its certificate must have the name in the address as subjectAltName, or use verify-ca",
        ),
        ("expired", "its certificate must be renewed"),
    ];
    let text = text.to_lowercase();
    HINTS.into_iter().find_map(|(sign, hint)| text.contains(&sign.to_lowercase()).then_some(hint))
}

/// The database answers, but refuses the request.
pub(super) fn refused(error: &postgres::Error) -> String {
    let text = in_full(error);
    match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => format!(
            "the database does not allow it: {text}; the first push creates the schema `retake` and needs \
             CREATE on the database, later ones need to write to its tables"
        ),
        _ => format!("unexpected error of the database: {text}"),
    }
}
