//! The two halves of a file server: parsing a request, and sending a response.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// The path of a complete request, and the rest of the connection.
/// `None` if the client went away, which a server ignores.
pub(crate) fn asked(stream: &TcpStream) -> Option<(String, BufReader<TcpStream>)> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut request = String::new();
    reader.read_line(&mut request).ok()?;
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    Some((request.split(' ').nth(1)?.to_owned(), reader))
}

pub(crate) fn answer(
    mut stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    path: &str,
) -> Option<()> {
    let (status, body) = match files.get(path) {
        Some(body) => ("200 OK", &body[..]),
        None => ("404 Not Found", &b""[..]),
    };
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}
