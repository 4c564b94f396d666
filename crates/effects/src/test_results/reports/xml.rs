//! XML as a sequence of simple events, within bounds.
//!
//! Only the five predefined entities and character references are resolved, so nothing can expand;
//! a declared entity stays as written.

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event as Raw};

use super::ReportError;

const MAX_DEPTH: usize = 64;

pub(super) enum Event<'a> {
    Open { name: &'a str, attributes: &'a [(String, String)] },
    Close { name: &'a str },
    Text(&'a str),
    Comment(&'a str),
}

/// Passes the events of the document to `each` and returns the name of its root element.
pub(super) fn read(text: &str, mut each: impl FnMut(Event<'_>)) -> Result<String, ReportError> {
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    reader.config_mut().check_end_names = true;
    let mut root = None;
    let mut open: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event().map_err(|error| ReportError::Xml(error.to_string()))?;
        match event {
            Raw::Start(tag) => {
                let name = local(&tag);
                // The root decides, so that large files of other kinds cost nothing.
                if root.is_none()
                    && !matches!(name.as_str(), "testsuites" | "testsuite" | "TestRun")
                {
                    return Err(ReportError::UnknownKind);
                }
                root.get_or_insert_with(|| name.clone());
                if open.len() == MAX_DEPTH {
                    return Err(ReportError::TooDeep(MAX_DEPTH));
                }
                each(Event::Open { name: &name, attributes: &attributes(&tag) });
                open.push(name);
            }
            Raw::Empty(tag) => {
                let name = local(&tag);
                root.get_or_insert_with(|| name.clone());
                each(Event::Open { name: &name, attributes: &attributes(&tag) });
                each(Event::Close { name: &name });
            }
            Raw::End(_) => {
                if let Some(name) = open.pop() {
                    each(Event::Close { name: &name });
                }
            }
            Raw::Text(text) => each(Event::Text(&text.xml10_content())),
            Raw::CData(text) => each(Event::Text(&text.xml10_content())),
            Raw::Comment(text) => each(Event::Comment(&text.xml10_content())),
            Raw::GeneralRef(reference) => {
                let name = reference.xml10_content();
                match reference.resolve_char_ref() {
                    Ok(Some(character)) => each(Event::Text(character.encode_utf8(&mut [0; 4]))),
                    _ => match resolve_xml_entity(&name) {
                        Some(known) => each(Event::Text(known)),
                        None => each(Event::Text(&format!("&{name};"))),
                    },
                }
            }
            Raw::Decl(_) | Raw::PI(_) | Raw::DocType(_) => {}
            Raw::Eof => break,
        }
    }
    if !open.is_empty() {
        return Err(ReportError::Truncated);
    }
    root.ok_or(ReportError::UnknownKind)
}

fn local(tag: &BytesStart<'_>) -> String {
    let name = tag.local_name();
    let name: &str = name.as_ref();
    name.to_owned()
}

/// The readable attributes; a report with one unreadable attribute is still useful.
fn attributes(tag: &BytesStart<'_>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for attribute in tag.attributes().with_checks(false).flatten().take(64) {
        let name = attribute.key.local_name();
        let name: &str = name.as_ref();
        let value = match quick_xml::escape::unescape(&attribute.value) {
            Ok(value) => value.into_owned(),
            Err(_) => attribute.value.into_owned(),
        };
        found.push((name.to_owned(), value));
    }
    found
}
