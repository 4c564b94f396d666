//! Random numbers, and small mutations of a line.

/// Pseudo-random numbers, reproducible by the seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Tokens that matter in lines.
const TOKENS: [&str; 60] = [
    "'", "\"", "\\", "$", "`", "(", ")", "{", "}", ";", "&", "|", "<", ">", "=", "#", "!", "~",
    "*", "?", "[", "]", "\n", " ", "\t", "\\\n", "&&", "||", ";;", "$(", "${", "$((", "))", "<<",
    "<<<", ">&", "&>", "<(", "$'", "\\x74", "trip", "push", "git", "env ", "eval ", "command ",
    "exec ", "x=", "$x", "\"$x\"", "'x'", "IFS=", "case ", " in ", "do ", "done", "then ", "fi",
    ":", "-",
];

/// The line with some mutations, which may insert parts of another one.
pub(super) fn mutated(text: &str, other: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(3) {
        let at = random.below(chars.len() + 1);
        match random.below(6) {
            0 if !chars.is_empty() => {
                let end = (at + 1 + random.below(3)).min(chars.len());
                chars.drain(at.min(end)..end);
            }
            1 => {
                let part: Vec<char> = other.chars().collect();
                let from = random.below(part.len() + 1);
                let to = from + random.below(part.len() + 1 - from);
                chars.splice(at..at, part[from..to].iter().copied());
            }
            2 if chars.len() > 1 => {
                let (a, b) = (random.below(chars.len()), random.below(chars.len()));
                chars.swap(a, b);
            }
            _ => _ = chars.splice(at..at, random.pick(&TOKENS).chars()),
        }
    }
    // Longer lines only cost time.
    chars.truncate(600);
    chars.into_iter().filter(|c| *c != '\0').collect()
}
