//! Just enough of Rust's lexical structure to tell code from comments and strings.
//!
//! [`code`] blanks comments, strings and character literals and keeps every newline, so that line
//! numbers stay right and braces, keywords and names that are left are real. It is total: any input
//! gives an output of as many lines. A parser is left out on purpose: the rules need no more.

/// The text with everything that is not code replaced by spaces.
pub(super) fn code(text: &str) -> String {
    blanked(text, |_| true)
}

/// The text with its comments replaced by spaces.
pub(super) fn uncommented(text: &str) -> String {
    blanked(text, |first| first == '/')
}

/// The text with those comments and literals replaced by spaces of whose first character
/// `is_blanked` says so.
fn blanked(text: &str, is_blanked: impl Fn(char) -> bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => block_comment_end(&chars, at),
            '"' => string_end(&chars, at),
            '\'' => char_end(&chars, at),
            'r' | 'b' | 'c' if !follows_word(&chars, at) => prefixed_end(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            let blank = is_blanked(chars[at]);
            let kept = |c: &char| if *c == '\n' || !blank { *c } else { ' ' };
            out.extend(chars[at..end].iter().map(kept));
            at = end;
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |len| at + len)
}

/// Block comments nest.
fn block_comment_end(chars: &[char], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0_usize);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (at, depth) = (at + 2, depth + 1),
            ('*', '/') => {
                (at, depth) = (at + 2, depth - 1);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of the string whose opening quote is at `begin`.
fn string_end(chars: &[char], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of the character literal at `begin`, or `begin` if it is a lifetime.
fn char_end(chars: &[char], begin: usize) -> usize {
    match (chars.get(begin + 1), chars.get(begin + 2)) {
        (Some('\\'), Some(_)) => chars[begin + 3..]
            .iter()
            .position(|c| *c == '\'')
            .map_or(chars.len(), |len| begin + 3 + len + 1),
        (Some(_), Some('\'')) => begin + 3,
        _ => begin,
    }
}

/// End of a literal with a prefix (`r"`, `b'`, `br#"`, `c"`), or `begin` if it is none.
fn prefixed_end(chars: &[char], begin: usize) -> usize {
    let prefix = chars[begin..].iter().take(2).take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let raw = chars[begin..begin + prefix].contains(&'r');
    let after = begin + prefix;
    let hashes = chars[after..].iter().take_while(|c| **c == '#').count();
    match chars.get(after + hashes) {
        Some('"') if raw => raw_string_end(chars, after + hashes + 1, hashes),
        Some('"') if hashes == 0 => string_end(chars, after),
        Some('\'') if hashes == 0 && !raw => char_end(chars, after),
        _ => begin,
    }
}

fn raw_string_end(chars: &[char], begin: usize, hashes: usize) -> usize {
    let mut at = begin;
    while at < chars.len() {
        let closing = chars[at + 1..].iter().take(hashes).take_while(|c| **c == '#').count();
        if chars[at] == '"' && closing == hashes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    chars.len()
}

/// The words of a line of code, each with what follows it.
pub(super) fn words(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let begin = rest.find(is_word)?;
        let len = rest[begin..].find(|c| !is_word(c)).unwrap_or(rest.len() - begin);
        let word = &rest[begin..begin + len];
        rest = &rest[begin + len..];
        Some((word, rest))
    })
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Line of its `fn`, from 1.
    pub(super) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(super) lines: usize,
}

/// The functions of a text that [`code`] has blanked, in the order of their ends.
pub(super) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    // Functions whose body is open, with the depth of braces outside of it.
    let mut open: Vec<(Function, usize)> = Vec::new();
    let mut declared: Option<Function> = None;
    // A `;` ends a declaration without a body, but not inside `[u8; 4]`.
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (index, line) in code.lines().enumerate() {
        let names = words(line).filter(|(word, _)| *word == "fn");
        let mut names: Vec<_> = names.map(|(_, rest)| (line.len() - rest.len(), rest)).collect();
        names.reverse();
        for (at, c) in line.char_indices() {
            if names.last().is_some_and(|(begin, _)| *begin == at) {
                let (_, rest) = names.pop().unwrap_or_default();
                // `fn(u8) -> u8` is a type, it has no name.
                if let (true, Some((name, _))) = (rest.starts_with(' '), words(rest).next()) {
                    declared = Some(Function { name: name.to_owned(), line: index + 1, lines: 0 });
                }
            }
            match c {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets = brackets.saturating_sub(1),
                ';' if brackets == 0 => declared = None,
                '{' => {
                    open.extend(declared.take().map(|function| (function, braces)));
                    braces += 1;
                }
                '}' => {
                    braces = braces.saturating_sub(1);
                    if open.last().is_some_and(|(_, outside)| *outside == braces) {
                        found.extend(open.pop().map(|(function, _)| closed(function, index + 1)));
                    }
                }
                _ => {}
            }
        }
    }
    found
}

fn closed(function: Function, last_line: usize) -> Function {
    Function { lines: last_line + 1 - function.line, ..function }
}

/// First line, from 1, of a trailing `#[cfg(test)] mod ... {`, if the file ends in one.
pub(super) fn inline_tests_line(code: &str) -> Option<usize> {
    let lines: Vec<&str> = code.lines().collect();
    let at = lines.iter().rposition(|line| line.trim() == "#[cfg(test)]")?;
    let next = lines[at + 1..].iter().find(|line| !line.trim().starts_with("#["))?;
    (next.trim_start().starts_with("mod ") && next.contains('{')).then_some(at + 1)
}

/// The blocks `impl NAME` of a text, without those of traits.
pub(super) fn impl_blocks(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let starts =
        code.match_indices("impl").filter(|(at, _)| *at == 0 || code[..*at].ends_with('\n'));
    starts.filter_map(|(at, _)| {
        let block = &code[at..at + code[at..].find("\n}").unwrap_or(code.len() - at)];
        let head = &block[..block.find('{')?];
        let is_of_trait = head.contains(" for ");
        let name = head.split_once("> ").map_or(head, |(_, name)| name);
        let name = words(name).map(|(word, _)| word).find(|word| *word != "impl")?;
        (!is_of_trait).then_some((name, block))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_kept_and_the_rest_is_blanked() {
        for (text, kept) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("} \" {") + 1"#, r#"f(        ) + 1"#),
            ("r#\"fn \" x\"# y", "            y"),
            ("'{' '\\'' 'a", "         'a"),
            ("b'{' br\"}\" c\"{\"", "               "),
            ("for r in b { c }", "for r in b { c }"),
            ("r#type", "r#type"),
            ("\"open", "     "),
        ] {
            assert_eq!(code(text), kept, "{text:?}");
        }
    }

    #[test]
    fn comments_alone_can_be_blanked() {
        for (text, kept) in [
            ("a // b\nc", "a     \nc"),
            ("\"// a\" /* b */ '\"' c", "\"// a\"         '\"' c"),
            ("r#\"/* a\"# b", "r#\"/* a\"# b"),
        ] {
            assert_eq!(uncommented(text), kept, "{text:?}");
        }
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n\"b\nc\" /* d\n */ e\n";
        assert_eq!(code(text).lines().count(), text.lines().count());
        assert_eq!(code(text).lines().nth(3), Some("    e"));
    }

    #[test]
    fn any_prefix_of_a_text_is_taken() {
        let text = "fn a() { r#\"x\"# 'b' '\\n' b'c' /* d */ \"e\\\"\" }";
        for end in 0..text.len() {
            functions(&code(&text[..end]));
        }
    }

    #[test]
    fn functions_are_measured() {
        let text = "\
fn one() {}
trait T { fn without(a: [u8; 4]); }
fn outer(
    a: fn(u8) -> u8,
) -> [u8; 2] {
    fn inner() {
    }
    let c = || { 1 };
}
";
        let found: Vec<(String, usize, usize)> =
            functions(&code(text)).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".into(), 1, 1), ("inner".into(), 6, 2), ("outer".into(), 3, 7)]);
    }

    #[test]
    fn inline_tests_are_found() {
        assert_eq!(inline_tests_line("fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n"), Some(3));
        assert_eq!(inline_tests_line("#[cfg(test)]\nmod tests;\n"), None);
        assert_eq!(inline_tests_line("fn a() {}\n"), None);
    }
}
