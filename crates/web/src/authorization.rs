//! Checks every request before any handler sees it.
//!
//! A page of another site can make a browser send requests here, under a name of its own (DNS
//! rebinding) or under this server's (CSRF); another program on this machine can serve pages from another
//! port and receives the cookie, since cookies ignore ports. So the Host and an Origin must be this
//! server's, the browser must not mark the request as cross-site, the cookie must be right, and a
//! request that changes something must also carry a token that only this server's pages contain.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue,
    LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access_token::matches_secret;
use crate::app::App;
use crate::assets;
use crate::connections::Connection;
use crate::error::RequestError;
use crate::page::PageError;
use crate::params::Params;
use crate::projects::{Apps, choice_to_remember};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
/// Maximum query of an address, in bytes and in parameters: far more than any link on a page has.
const MAX_QUERY: usize = 16 << 10;
const MAX_PARAMETERS: usize = 100;
pub(crate) const PAGE_TOKEN: &str = "x-retake-page-token";

/// Checks a request, passes it on, and adds the security headers to the response.
pub(crate) async fn authorize(
    State(apps): State<Arc<Apps>>,
    request: Request,
    next: Next,
) -> Response {
    let app = apps.whole();
    let is_api = request.uri().path().starts_with("/api/");
    let busy = Connection::of(&request).map(|connection| connection.busy());
    let response = match admit(app, &request) {
        Ok(Admission::Granted) => {
            let remembered = choice_to_remember(app, request.uri());
            let mut response = next.run(request).await;
            if let Some(cookie) = remembered {
                response.headers_mut().append(SET_COOKIE, cookie);
            }
            response
        }
        Ok(Admission::Exchange(response)) => response,
        Err(error) if is_api => error.as_json(),
        Err(error) => PageError::from(error).into_response(),
    };
    let mut response = match busy {
        Some(busy) => busy.until_streamed(response),
        None => response,
    };
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    put(CONTENT_SECURITY_POLICY, POLICY);
    put(X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(X_FRAME_OPTIONS, "DENY");
    put(REFERRER_POLICY, "no-referrer");
    put(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    put(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

enum Admission {
    Granted,
    /// The token in the address was right: the response sets the cookie and removes the token.
    Exchange(Response),
}

fn admit(app: &App, request: &Request) -> Result<Admission, RequestError> {
    let headers = request.headers();
    check_host(headers, app.port)?;
    check_origin(headers, app.port)?;
    check_query(request.uri())?;
    if let Some(response) = exchange_token(app, request)? {
        return Ok(Admission::Exchange(response));
    }
    // Assets contain no secrets, and the error page needs its style.
    let asset = request.method() == Method::GET && request.uri().path().starts_with(assets::PATH);
    if !asset && !is_known(app, headers) {
        return Err(RequestError::unauthorised(
            "open the address that `retake ui` printed: it has a token that this browser does not have",
        ));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let token = headers.get(PAGE_TOKEN).and_then(|value| value.to_str().ok());
    if changes && !token.is_some_and(|token| matches_secret(token, &app.tokens.page)) {
        return Err(RequestError::forbidden(
            "this needs the token of a page that retake served; load the page again",
        ));
    }
    Ok(Admission::Granted)
}

fn is_our_authority(authority: &str, port: u16) -> bool {
    ["127.0.0.1", "localhost"].iter().any(|name| authority == format!("{name}:{port}"))
}

fn check_host(headers: &HeaderMap, port: u16) -> Result<(), RequestError> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) if is_our_authority(host, port) => Ok(()),
        _ => Err(RequestError::forbidden(
            "this name is not the server's own; use the address that `retake ui` printed",
        )),
    }
}

fn check_origin(headers: &HeaderMap, port: u16) -> Result<(), RequestError> {
    let foreign = || RequestError::forbidden("the request comes from a page of another origin");
    for origin in headers.get_all(ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        if !authority.is_some_and(|authority| is_our_authority(authority, port)) {
            return Err(foreign());
        }
    }
    let said = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match said("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        // A user followed a link; without a token or cookie it shows nothing.
        Some(_) if said("sec-fetch-mode") == Some("navigate") => Ok(()),
        Some(_) => Err(foreign()),
    }
}

/// A page repeats its query in many of its links, so the size of a response would grow with the square of
/// the query's length.
fn check_query(uri: &Uri) -> Result<(), RequestError> {
    let query = uri.query().unwrap_or_default();
    let count = query.split('&').count();
    if query.len() > MAX_QUERY || count > MAX_PARAMETERS {
        return Err(RequestError::too_large(format!(
            "the query of this address has {} bytes and {count} parameters; at most {MAX_QUERY} and \
             {MAX_PARAMETERS} are accepted",
            query.len()
        )));
    }
    Ok(())
}

/// `/?token=…` becomes a cookie and disappears from the address bar.
fn exchange_token(app: &App, request: &Request) -> Result<Option<Response>, RequestError> {
    if request.method() != Method::GET || request.uri().path() != "/" {
        return Ok(None);
    }
    let params = Params::from_uri(request.uri());
    let Some(token) = params.get("token") else { return Ok(None) };
    if !matches_secret(token, &app.tokens.address) {
        return Err(RequestError::unauthorised(
            "this token is invalid or has expired; use the address that `retake ui` printed last",
        ));
    }
    let cookie = format!(
        "{}={}; Path=/; HttpOnly; SameSite=Strict",
        cookie_name(app.port),
        app.tokens.cookie
    );
    let cookie = HeaderValue::from_str(&cookie)
        .map_err(|_| RequestError::internal("the cookie could not be created"))?;
    let headers = [(SET_COOKIE, cookie), (LOCATION, HeaderValue::from_static("/"))];
    Ok(Some((StatusCode::SEE_OTHER, headers).into_response()))
}

/// Cookies ignore ports, so the name contains it: servers of two projects do not log each other out.
fn cookie_name(port: u16) -> String {
    format!("retake_{port}")
}

fn is_known(app: &App, headers: &HeaderMap) -> bool {
    let name = cookie_name(app.port);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookie = cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .any(|(key, value)| key == name && matches_secret(value, &app.tokens.cookie));
    // For programs, which have no cookies.
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    cookie || bearer.is_some_and(|token| matches_secret(token, &app.tokens.address))
}
