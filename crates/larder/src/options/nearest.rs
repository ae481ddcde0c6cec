//! Finds the known names closest to a mistyped one.

use strsim::levenshtein;

/// Most differences at which a name is still worth suggesting.
const DISTANCE_MAX: usize = 3;

/// Most names that are suggested.
const SUGGESTIONS_MAX: usize = 3;

/// The names of `known` that are closest to `typed`, closest first; none if no name is close.
pub(super) fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let near =
        |name: &str| levenshtein(typed, name).min(if prefix(typed, name) { 1 } else { usize::MAX });
    let mut found: Vec<(usize, &str)> = known
        .into_iter()
        .map(|name| (near(name), name))
        .filter(|(d, _)| *d <= DISTANCE_MAX)
        .collect();
    found.sort_unstable();
    // A name that is twice as far as the best one is noise.
    let best = found.first().map_or(0, |(distance, _)| *distance);
    found.retain(|(distance, _)| *distance <= best + 1);
    found.truncate(SUGGESTIONS_MAX);
    found.into_iter().map(|(_, name)| name).collect()
}

fn prefix(typed: &str, name: &str) -> bool {
    typed.len() >= 3 && (name.starts_with(typed) || typed.starts_with(name) && name.len() >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 6] = ["rsize", "wsize", "acregmin", "acregmax", "actimeo", "nconnect"];

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(nearest("rsise", KNOWN), ["rsize", "wsize"]);
        assert_eq!(nearest("actime", KNOWN), ["actimeo"]);
        assert_eq!(nearest("acreg", KNOWN), ["acregmax", "acregmin"]);
        assert!(nearest("something", KNOWN).is_empty());
    }
}
