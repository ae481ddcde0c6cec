//! Which known names come near to a mistyped one.

/// Most differences at which a name is still worth suggesting.
const DISTANCE_MAX: usize = 3;

/// Most names that are suggested.
const SUGGESTIONS_MAX: usize = 3;

/// The names of `known` that come nearest to `typed`, nearest first; none if nothing is near.
pub(super) fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let near =
        |name: &str| distance(typed, name).min(if prefix(typed, name) { 1 } else { usize::MAX });
    let mut found: Vec<(usize, &str)> = known
        .into_iter()
        .map(|name| (near(name), name))
        .filter(|(d, _)| *d <= DISTANCE_MAX)
        .collect();
    found.sort_unstable();
    // What is twice as far as the best is noise.
    let best = found.first().map_or(0, |(distance, _)| *distance);
    found.retain(|(distance, _)| *distance <= best + 1);
    found.truncate(SUGGESTIONS_MAX);
    found.into_iter().map(|(_, name)| name).collect()
}

fn prefix(typed: &str, name: &str) -> bool {
    typed.len() >= 3 && (name.starts_with(typed) || typed.starts_with(name) && name.len() >= 3)
}

/// Levenshtein's distance: characters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 6] = ["rsize", "wsize", "acregmin", "acregmax", "actimeo", "nconnect"];

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(nearest("rsise", KNOWN), ["rsize", "wsize"]);
        assert_eq!(nearest("actime", KNOWN), ["actimeo"]);
        assert_eq!(nearest("acreg", KNOWN), ["acregmax", "acregmin"]);
        assert!(nearest("something", KNOWN).is_empty());
    }
}
