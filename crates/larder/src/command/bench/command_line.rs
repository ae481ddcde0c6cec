//! Writes a command as a line that a shell splits into the same words, for records; and reads such
//! a line.

/// Characters of words that need no quotes, besides letters and digits.
const PLAIN: &str = "%+,-./:=@_";

/// The line of these words. A word with special characters is in single quotes.
pub(super) fn of(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let is_plain = |c: char| c.is_alphanumeric() || PLAIN.contains(c);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The words of a line. Of a shell's syntax, only single quotes, backslashes and white space count;
/// `None` if a quote is not closed.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        match next {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if !is_quoted => word.get_or_insert_default().push(rest.next()?),
            next if next.is_whitespace() && !is_quoted => words.extend(word.take()),
            next => word.get_or_insert_default().push(next),
        }
    }
    words.extend(word);
    (!is_quoted).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_command_has_the_words_that_were_typed() {
        for typed in [
            &["larder", "bench", "run", "basic5", "--link=100mbit,delay=5", "--target", "a=/b"][..],
            &["larder", "--out", "my runs", "it's", "", "a\\b", "$HOME", "'", "\t", "*"],
        ] {
            let typed: Vec<String> = typed.iter().map(ToString::to_string).collect();
            assert_eq!(words(&of(&typed)), Some(typed));
        }
        assert_eq!(of(&["larder".to_owned(), "my run".to_owned()]), "larder 'my run'");
        // As older records have it.
        assert_eq!(words(" larder  bench ").unwrap(), ["larder", "bench"]);
        assert_eq!((words("larder 'a"), words("a\\")), (None, None));
    }
}
