//! Extracts the server's name from the first message of an encrypted connection.

/// What the beginning of a connection shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The message is incomplete.
    More,
    /// Unencrypted, or without a visible name.
    Unnamed,
    Named(String),
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// The outer name of an encrypted hello is the provider's.
const ENCRYPTED_HELLO: u16 = 0xfe0d;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.bytes(bytes)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    /// Bytes with a length prefix.
    fn counted(&mut self, size: usize) -> Option<Reader<'a>> {
        let count = self.number(size)?;
        self.bytes(count).map(Reader)
    }
}

/// Parses the first record. Anything beyond it is ignored.
pub(super) fn hello(bytes: &[u8]) -> Hello {
    match bytes {
        [] => return Hello::More,
        [HANDSHAKE, rest @ ..] => {
            let length = rest.get(2..4).map(|two| usize::from(two[0]) << 8 | usize::from(two[1]));
            match length {
                _ if rest.first().is_some_and(|version| *version != 3) => return Hello::Unnamed,
                None => return Hello::More,
                Some(length) if bytes.len() < 5 + length => return Hello::More,
                Some(_) => {}
            }
        }
        _ => return Hello::Unnamed,
    }
    name(&mut Reader(&bytes[3..])).map_or(Hello::Unnamed, Hello::Named)
}

fn name(record: &mut Reader<'_>) -> Option<String> {
    let mut message = record.counted(2)?;
    if message.number(1)? != usize::from(CLIENT_HELLO) {
        return None;
    }
    let mut hello = message.counted(3)?;
    // Version and random bytes.
    hello.bytes(34)?;
    hello.counted(1)?;
    hello.counted(2)?;
    hello.counted(1)?;
    let mut extensions = hello.counted(2)?;
    let mut found = None;
    while let Some(kind) = extensions.number(2) {
        let mut extension = extensions.counted(2)?;
        match kind as u16 {
            ENCRYPTED_HELLO => return None,
            SERVER_NAME => {
                let mut list = extension.counted(2)?;
                if list.number(1)? == 0 {
                    found = String::from_utf8(list.counted(2)?.0.to_vec()).ok();
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: Option<&str>, more: &[u8]) -> Vec<u8> {
        let counted = |size: usize, bytes: &[u8]| {
            let mut out = bytes.len().to_be_bytes()[8 - size..].to_vec();
            out.extend_from_slice(bytes);
            out
        };
        let mut extensions = more.to_vec();
        if let Some(name) = name {
            let entry = [&[0][..], &counted(2, name.as_bytes())].concat();
            extensions.extend([0, 0]);
            extensions.extend(counted(2, &counted(2, &entry)));
        }
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.extend(counted(1, &[1; 32]));
        hello.extend(counted(2, &[0x13, 1]));
        hello.extend(counted(1, &[0]));
        hello.extend(counted(2, &extensions));
        let message = [&[CLIENT_HELLO][..], &counted(3, &hello)].concat();
        [&[HANDSHAKE, 3, 1][..], &counted(2, &message)].concat()
    }

    #[test]
    fn the_server_name_is_found_once_the_message_is_complete() {
        let bytes = message(Some("example.com"), &[0, 43, 0, 1, 5]);
        for length in 0..bytes.len() {
            assert_eq!(hello(&bytes[..length]), Hello::More, "{length}");
        }
        assert_eq!(hello(&bytes), Hello::Named("example.com".to_owned()));
        assert_eq!(hello(&message(None, &[])), Hello::Unnamed);
        assert_eq!(hello(&message(Some("a.b"), &[0xfe, 0x0d, 0, 0])), Hello::Unnamed);
        assert_eq!(hello(b"SSH-2.0-x"), Hello::Unnamed);
        assert_eq!(hello(&[HANDSHAKE, 9]), Hello::Unnamed);
    }

    #[test]
    fn no_bytes_make_it_fail() {
        let mut bytes = message(Some("example.com"), &[0, 43, 0, 1, 5]);
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let before = std::mem::replace(&mut bytes[at], value);
                // Any result will do.
                _ = hello(&bytes);
                bytes[at] = before;
            }
        }
    }
}
