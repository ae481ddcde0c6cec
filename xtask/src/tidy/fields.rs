//! Fields that other files may change although their type has methods for that.
//!
//! A type with a method that takes `&mut self` is a state: it is changed through its methods. A
//! field of it that other files can assign is counted. A record, which has no such method, may be
//! open.

use std::collections::BTreeSet;

use super::{File, lex};

/// How a method takes the state that it changes.
const CHANGING: [&str; 3] = ["(&mut self)", "(&mut self,", " &mut self,"];

/// The files of one crate that have such fields, and how many.
pub(super) fn open<'a>(files: &[&'a File]) -> Vec<(&'a str, usize)> {
    let codes: Vec<String> = files.iter().map(|file| lex::code(&file.text)).collect();
    let changing: BTreeSet<&str> = codes
        .iter()
        .flat_map(|code| lex::impl_blocks(code))
        .filter(|(_, block)| CHANGING.iter().any(|receiver| block.contains(receiver)))
        .map(|(name, _)| name)
        .collect();
    let count = |code: &String| {
        let structs = structs(code).filter(|(name, _)| changing.contains(name));
        structs.map(|(_, block)| open_fields(block)).sum::<usize>()
    };
    let counts = files.iter().zip(&codes).map(|(file, code)| (&*file.path, count(code)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The structs of a text, with their fields in braces.
fn structs(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.match_indices("struct ").filter_map(|(at, word)| {
        let rest = &code[at + word.len()..];
        let (name, _) = lex::words(rest).next()?;
        let begin = rest.find(['{', ';', '('])?;
        let end = rest.find("\n}").unwrap_or(rest.len());
        (rest[begin..].starts_with('{') && begin < end).then(|| (name, &rest[begin..end]))
    })
}

fn open_fields(block: &str) -> usize {
    block.lines().filter(|line| line.trim_start().starts_with("pub")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_fields_of_what_changes_itself_are_counted() {
        let state = "struct State {\n    pub(crate) a: u8,\n    b: u8,\n    pub c: u8,\n}\n";
        for (methods, count) in [
            ("impl State {\n    fn f(&mut self) {}\n}\n", 2),
            ("impl State {\n    fn f(&self) { g(&mut self.a) }\n}\n", 0),
            ("impl Other {\n    fn f(&mut self) {}\n}\n", 0),
            ("impl Iterator for State {\n    fn next(&mut self) {}\n}\n", 0),
        ] {
            let files = [("src/a.rs", state), ("src/b.rs", methods)]
                .map(|(path, text)| File { path: path.to_owned(), text: text.to_owned() });
            let counts = open(&files.iter().collect::<Vec<_>>());
            assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), count, "{methods}");
        }
    }
}
