//! Who may ask: every request is checked here before anything looks at it.
//!
//! A page of another site can make a browser send requests here, under a name of its own (DNS
//! rebinding) or under ours (CSRF); another program on this machine can serve pages from another
//! port, which gets our cookie since cookies know no ports. So the Host must be ours, an Origin
//! must be ours, the browser must not call the request foreign, the cookie must be right, and what
//! changes something must also know what only our own pages contain.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue,
    LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::assets::PLACE as ASSETS;
use super::connections::Connection;
use super::access_token::same;
use super::params::Params;
use super::error::RequestError;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";
pub(super) const PAGE_TOKEN: &str = "x-retake-page-token";

/// Checks a request, lets it through, and says on the answer what the browser must not do with it.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let for_program = request.uri().path().starts_with("/api/");
    let busy = Connection::of(&request).map(|connection| connection.busy());
    let response = match admit(&app, &request) {
        Ok(Admission::Welcome) => next.run(request).await,
        Ok(Admission::Exchange(response)) => response,
        Err(error) if for_program => error.as_json(),
        Err(error) => error.as_page(),
    };
    let mut response = match busy {
        Some(busy) => busy.until_told(response),
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
    Welcome,
    /// The token was right: here is the cookie, and the address without the token.
    Exchange(Response),
}

fn admit(app: &App, request: &Request) -> Result<Admission, RequestError> {
    let headers = request.headers();
    check_host(headers, app.port)?;
    check_origin(headers, app.port)?;
    if let Some(response) = exchange(app, request)? {
        return Ok(Admission::Exchange(response));
    }
    // They tell nothing, and the page that says so is to be read.
    let asset = request.method() == Method::GET && request.uri().path().starts_with(ASSETS);
    if !asset && !known(app, headers) {
        return Err(RequestError::unauthorised(
            "open the address that `retake ui` printed: it has a token that this browser lacks",
        ));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let told = headers.get(PAGE_TOKEN).and_then(|value| value.to_str().ok());
    if changes && !told.is_some_and(|told| same(told, &app.tokens.page)) {
        return Err(RequestError::forbidden(
            "this needs the token of a page that retake served; load the page again",
        ));
    }
    Ok(Admission::Welcome)
}

fn ours(authority: &str, port: u16) -> bool {
    ["127.0.0.1", "localhost"].iter().any(|name| authority == format!("{name}:{port}"))
}

fn check_host(headers: &HeaderMap, port: u16) -> Result<(), RequestError> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) if ours(host, port) => Ok(()),
        _ => Err(RequestError::forbidden(
            "this name is not the server's own; use the address that `retake ui` printed",
        )),
    }
}

fn check_origin(headers: &HeaderMap, port: u16) -> Result<(), RequestError> {
    let foreign = || RequestError::forbidden("a page of another origin asked for this");
    for origin in headers.get_all(ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        if !authority.is_some_and(|authority| ours(authority, port)) {
            return Err(foreign());
        }
    }
    let said = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match said("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        // A link that someone followed; without a token or cookie it shows nothing.
        Some(_) if said("sec-fetch-mode") == Some("navigate") => Ok(()),
        Some(_) => Err(foreign()),
    }
}

/// `/?token=…` becomes a cookie and leaves the address bar.
fn exchange(app: &App, request: &Request) -> Result<Option<Response>, RequestError> {
    if request.method() != Method::GET || request.uri().path() != "/" {
        return Ok(None);
    }
    let params = Params::of(request.uri());
    let Some(token) = params.get("token") else { return Ok(None) };
    if !same(token, &app.tokens.token) {
        return Err(RequestError::unauthorised(
            "this token is not, or no longer, the server's; take the address it printed last",
        ));
    }
    let cookie =
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie_name(app.port), app.tokens.cookie);
    let cookie = HeaderValue::from_str(&cookie)
        .map_err(|_| RequestError::internal("the cookie could not be made"))?;
    let headers = [(SET_COOKIE, cookie), (LOCATION, HeaderValue::from_static("/"))];
    Ok(Some((StatusCode::SEE_OTHER, headers).into_response()))
}

/// Cookies know no ports, so the name does: servers of two projects do not log each other out.
fn cookie_name(port: u16) -> String {
    format!("retake_{port}")
}

fn known(app: &App, headers: &HeaderMap) -> bool {
    let name = cookie_name(app.port);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookie = cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .any(|(key, value)| key == name && same(value, &app.tokens.cookie));
    // For programs, which have no cookies.
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    cookie || bearer.is_some_and(|token| same(token, &app.tokens.token))
}

impl Params {
    pub(super) fn of(uri: &Uri) -> Self {
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|query| Self::from(query.0))
            .unwrap_or_default()
    }
}
