//! The bytes of one file: sparse pages that copies share, and the sum of their digests.
//!
//! A page of zeros is never kept: written zeros and a hole read the same, so no check can
//! distinguish them. Bytes past the end are always zeros.

use std::ops::Range;
use std::sync::Arc;

use super::digest;
use super::radix_map::RadixMap;
use crate::recorded_bytes::RecordedBytes;

pub(crate) const PAGE: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct FileContent {
    size: u64,
    pages: RadixMap<Page>,
    sum: u128,
}

#[derive(Clone, Debug)]
enum Page {
    /// Assembled from several writes, or from a part of one.
    Own(Arc<OwnPage>),
    /// A whole page of one write: shared with the recording.
    Recorded(Arc<RecordedPage>),
}

#[derive(Clone, Debug)]
struct OwnPage {
    digest: u128,
    bytes: [u8; PAGE],
}

#[derive(Debug)]
struct RecordedPage {
    digest: u128,
    bytes: RecordedBytes,
}

impl Page {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(page) => &page.bytes,
            Self::Recorded(page) => &page.bytes,
        }
    }

    fn digest(&self) -> u128 {
        match self {
            Self::Own(page) => page.digest,
            Self::Recorded(page) => page.digest,
        }
    }
}

impl FileContent {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Changes with the bytes; the caller adds the size.
    pub(crate) fn sum(&self) -> u128 {
        self.sum
    }

    pub(crate) fn write(&mut self, offset: u64, data: &RecordedBytes) {
        self.write_part(offset, data, 0..data.len());
    }

    /// Writes a part of bytes that would all begin at `offset`.
    pub(crate) fn write_part(&mut self, offset: u64, data: &RecordedBytes, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.size = self.size.max(offset.saturating_add(range.end as u64));
        let first = offset.div_ceil(PAGE as u64);
        let known = data.page_digests(offset, |bytes| whole_pages(offset, bytes));
        let mut done = range.start;
        while done < range.end {
            let (number, within) = place(offset + done as u64);
            let take = (PAGE - within).min(range.end - done);
            if take == PAGE {
                let bytes = data.part(done..done + PAGE);
                let digest = match known {
                    Some(known) => known[(number - first) as usize],
                    None => page_digest(number, &bytes),
                };
                self.put(number, bytes, digest);
            } else {
                self.change(number, within..within + take, |page| {
                    page.copy_from_slice(&data[done..done + take]);
                });
            }
            done += take;
        }
        if known.is_none() {
            data.part(range).release();
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        // Holes are zeros already: only existing pages are visited.
        let mut next = self.next_page(offset / PAGE as u64);
        while let Some(number) = next {
            let start = number * PAGE as u64;
            if start >= end {
                break;
            }
            let from = offset.max(start);
            let length = end.min(start + PAGE as u64) - from;
            let within = (from - start) as usize;
            self.change(number, within..within + length as usize, |page| page.fill(0));
            next = self.next_page(number + 1);
        }
    }

    pub(crate) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// The bytes by page, in order, without holes, cut at the size.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map_while(|(number, page)| {
            let offset = number * PAGE as u64;
            let length = self.size.checked_sub(offset).filter(|rest| *rest > 0)?;
            Some((offset, &page.bytes()[..length.min(PAGE as u64) as usize]))
        })
    }

    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let length = self.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let take = (PAGE - within).min(length - done);
            let target = &mut buffer[done..done + take];
            match self.pages.get(at / PAGE as u64) {
                Some(page) => target.copy_from_slice(&page.bytes()[within..within + take]),
                None => target.fill(0),
            }
            done += take;
        }
        length
    }

    fn next_page(&self, from: u64) -> Option<u64> {
        self.pages.next(from).map(|(number, _)| number)
    }

    /// Replaces a page by these bytes, which are a whole page.
    fn put(&mut self, number: u64, bytes: RecordedBytes, digest: u128) {
        let before = match digest {
            0 => self.pages.remove(number),
            digest => {
                self.sum = self.sum.wrapping_add(digest);
                let page = RecordedPage { digest, bytes };
                self.pages.insert(number, Page::Recorded(Arc::new(page)))
            }
        };
        self.sum = self.sum.wrapping_sub(before.map_or(0, |page| page.digest()));
    }

    /// Changes a part of a page.
    fn change(&mut self, number: u64, range: Range<usize>, change: impl FnOnce(&mut [u8])) {
        let shared = match self.pages.get(number) {
            Some(Page::Own(_)) => None,
            Some(Page::Recorded(page)) => {
                let mut bytes = [0; PAGE];
                bytes.copy_from_slice(&page.bytes);
                Some(OwnPage { digest: page.digest, bytes })
            }
            None => Some(OwnPage { digest: 0, bytes: [0; PAGE] }),
        };
        if let Some(own) = shared {
            self.pages.insert(number, Page::Own(Arc::new(own)));
        }
        if let Some(Page::Own(page)) = self.pages.get_mut(number) {
            let page = Arc::make_mut(page);
            change(&mut page.bytes[range]);
            self.sum = self.sum.wrapping_sub(page.digest);
            page.digest = page_digest(number, &page.bytes);
            self.sum = self.sum.wrapping_add(page.digest);
            if page.digest == 0 {
                self.pages.remove(number);
            }
        }
    }
}

/// The number of the page at an offset, and the offset inside it.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}

/// The digests of the whole pages in bytes that begin at an offset.
fn whole_pages(offset: u64, bytes: &[u8]) -> Box<[u128]> {
    let first = offset.div_ceil(PAGE as u64);
    let skipped = (first * PAGE as u64 - offset) as usize;
    let (pages, _) = bytes.get(skipped..).unwrap_or_default().as_chunks::<PAGE>();
    (first..).zip(pages).map(|(number, page)| page_digest(number, page)).collect()
}

/// What a page adds to its file's sum; 0 for zeros, which are not kept.
fn page_digest(number: u64, page: &[u8]) -> u128 {
    if is_zeros(page) { 0 } else { digest::bytes(number, page).max(1) }
}

fn is_zeros(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Zero(u64, u64),
        Resize(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let offset = || 0..20_000_u64;
        prop_oneof![
            (offset(), prop_oneof![3 => 0..9000_usize, 1 => 64_000..90_000_usize], 0..3_u8)
                .prop_map(|(at, length, byte)| Step::Write(at, vec![byte; length])),
            (offset(), 0..9000_u64).prop_map(|(at, length)| Step::Zero(at, length)),
            offset().prop_map(Step::Resize),
        ]
    }

    fn extend(plain: &mut Vec<u8>, size: usize) {
        if plain.len() < size {
            plain.resize(size, 0);
        }
    }

    proptest! {
        #[test]
        fn file_content_equals_plain_bytes_and_has_the_same_digest(steps in prop::collection::vec(step(), 1..20)) {
            let mut bytes = FileContent::default();
            let mut plain = Vec::new();
            for step in &steps {
                match step {
                    Step::Write(at, data) => {
                        bytes.write(*at, &data[..].into());
                        if !data.is_empty() {
                            let end = *at as usize + data.len();
                            extend(&mut plain, end);
                            plain[*at as usize..end].copy_from_slice(data);
                        }
                    }
                    Step::Zero(at, length) => {
                        bytes.zero(*at, *length);
                        let end = (*at + *length).min(plain.len() as u64) as usize;
                        if let Some(range) = plain.get_mut(*at as usize..end) {
                            range.fill(0);
                        }
                    }
                    Step::Resize(size) => {
                        bytes.resize(*size);
                        plain.resize(*size as usize, 0);
                    }
                }
            }
            let mut read = vec![7; plain.len() + 10];
            let length = bytes.read(0, &mut read);
            prop_assert_eq!(&read[..length], &plain[..]);
            let mut again = vec![0; plain.len()];
            for (offset, extent) in bytes.extents() {
                again[offset as usize..offset as usize + extent.len()].copy_from_slice(extent);
            }
            prop_assert_eq!(&again, &plain);
            let mut fresh = FileContent::default();
            fresh.write(0, &plain[..].into());
            prop_assert_eq!(fresh.sum(), bytes.sum());
            if let Some(byte) = plain.first_mut() {
                *byte ^= 1;
                fresh.write(0, &plain[..].into());
                prop_assert_ne!(fresh.sum(), bytes.sum());
            }
        }
    }

    #[test]
    fn parts_of_long_bytes_are_the_same_bytes_wherever_they_were_counted_first() {
        let plain: Vec<u8> = (0..200_000_u32).map(|at| (at / 300) as u8).collect();
        let data = RecordedBytes::from(&plain[..]);
        for (offset, range) in [(5, 0..200_000), (5, 3000..150_001), (4096, 0..9000), (5, 7..8)] {
            let mut content = FileContent::default();
            content.write_part(offset, &data, range.clone());
            let mut fresh = FileContent::default();
            fresh.write(offset + range.start as u64, &plain[range.clone()].into());
            assert_eq!(content.sum(), fresh.sum(), "{offset} {range:?}");
            let mut read = vec![0; range.len()];
            content.read(offset + range.start as u64, &mut read);
            assert!(read == plain[range]);
        }
    }
}
