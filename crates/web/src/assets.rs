//! The stylesheet, the script and the icon, built into the binary. Their names change with their content,
//! so browsers may cache them.

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::error::RequestError;

struct Asset {
    stem: &'static str,
    suffix: &'static str,
    kind: &'static str,
    content: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset {
        stem: "app",
        suffix: "css",
        kind: "text/css; charset=utf-8",
        content: include_str!("assets/app.css"),
    },
    Asset {
        stem: "app",
        suffix: "js",
        kind: "text/javascript; charset=utf-8",
        content: concat!(
            include_str!("assets/app.js"),
            include_str!("assets/output.js"),
            include_str!("assets/list.js")
        ),
    },
    Asset {
        stem: "icon",
        suffix: "svg",
        kind: "image/svg+xml",
        content: include_str!("assets/icon.svg"),
    },
];

impl Asset {
    fn name(&self) -> String {
        let hash = blake3::hash(self.content.as_bytes()).to_hex();
        format!("{}-{}.{}", self.stem, &hash[..10], self.suffix)
    }
}

static NAMES: LazyLock<[String; 3]> = LazyLock::new(|| ASSETS.each_ref().map(Asset::name));

/// The path prefix of their addresses.
pub(crate) const PATH: &str = "/assets/";

/// The addresses of stylesheet, script and icon.
pub(crate) fn addresses() -> [String; 3] {
    NAMES.each_ref().map(|name| format!("{PATH}{name}"))
}

pub(crate) fn response(name: &str) -> Result<Response, RequestError> {
    let asset = ASSETS.iter().zip(NAMES.iter()).find(|(_, known)| *known == name);
    let (asset, _) = asset.ok_or_else(|| RequestError::not_found(format!("there is no {name}")))?;
    let headers =
        [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, "private, max-age=31536000, immutable")];
    Ok((headers, asset.content).into_response())
}
