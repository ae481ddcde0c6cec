//! Which files of a crate need each other, and the largest cycle among them.
//!
//! A file needs another if it names something that is defined there, or calls a method there of a
//! type whose methods are spread over several files. Paths are seen through re-exports, so a
//! folder's `mod.rs` ties nothing; tests are left out. Read from the text: what a macro makes is
//! not seen, and a call is one of a type's if it is made on `self` in a block of that type, on the
//! type, or on what is named like it (`core.f()`, `state().f()`).

use std::collections::{BTreeMap, BTreeSet};

use super::{File, lex};

/// Words before the name of what they define.
const DEFINING: [&str; 8] =
    ["struct", "enum", "trait", "type", "const", "static", "fn", "macro_rules"];

/// Longest chain of re-exports that is followed.
const SHOWN_MAX: usize = 8;

/// The size of the largest circle among `files`, of the crate whose sources are in the folder
/// `src`.
pub(super) fn largest(files: &[&File], src: &str) -> usize {
    of(files, src).iter().map(Vec::len).max().unwrap_or(0)
}

/// The circles among `files`, of the crate whose sources are in the folder `src`: the modules of
/// each, and which of the same circle each one needs.
pub(super) fn of(files: &[&File], src: &str) -> Vec<Vec<(String, Vec<String>)>> {
    let house = House::new(files.iter().filter_map(|file| Source::new(file, src)).collect());
    let needs: Vec<BTreeSet<usize>> = (0..house.sources.len()).map(|at| house.needs(at)).collect();
    let reached: Vec<_> = (0..needs.len()).map(|from| reach(&needs, from)).collect();
    let circle = |at: usize| -> BTreeSet<usize> {
        reached[at].iter().copied().filter(|to| reached[*to].contains(&at)).collect()
    };
    let circles: BTreeSet<_> = (0..needs.len()).map(circle).filter(|of| !of.is_empty()).collect();
    let name = |at: usize| house.sources[at].module.join("::");
    let told = |circle: &BTreeSet<usize>| {
        let of_circle = |at: usize| needs[at].intersection(circle).map(|to| name(*to)).collect();
        circle.iter().map(|at| (name(*at), of_circle(*at))).collect()
    };
    circles.iter().map(told).collect()
}

/// All that is needed on the way from a file; itself if the way comes back.
fn reach(needs: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(at) = left.pop() {
        left.extend(needs[at].iter().filter(|next| reached.insert(**next)));
    }
    reached
}

/// A file of a crate, without its tests.
struct Source {
    /// Its module, from the root of the crate.
    module: Vec<String>,
    /// It is a folder's or the crate's: it shows what is elsewhere.
    is_face: bool,
    code: String,
    defined: BTreeSet<String>,
    paths: Vec<Path>,
}

/// A path in the text, `a::b::c`.
#[derive(Debug, PartialEq)]
struct Path {
    segments: Vec<String>,
    /// The name by which it is shown to others, if it is re-exported.
    shown_as: Option<String>,
}

impl Source {
    fn new(file: &File, src: &str) -> Option<Source> {
        let inside = file.path.strip_prefix(src)?.strip_suffix(".rs")?;
        if inside.ends_with("tests") || inside.contains("tests/") {
            return None;
        }
        let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
        let is_face = module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&&**last));
        if is_face {
            module.pop();
        }
        let code = lex::code(&file.text);
        let lines = lex::inline_tests_line(&code).map_or(usize::MAX, |line| line - 1);
        let code: String = code.split_inclusive('\n').take(lines).collect();
        let words: Vec<&str> = lex::words(&code).map(|(word, _)| word).collect();
        let defines = words.windows(2).filter(|pair| DEFINING.contains(&pair[0]));
        let defined = defines.map(|pair| pair[1].to_owned()).collect();
        let paths = paths(&code);
        Some(Source { module, is_face, code, defined, paths })
    }

    /// The functions of its blocks `impl NAME`.
    fn methods_of(&self, name: &str) -> BTreeSet<String> {
        let blocks = lex::impl_blocks(&self.code).filter(|(of, _)| *of == name);
        blocks.flat_map(|(_, block)| lex::functions(block)).map(|function| function.name).collect()
    }
}

/// The files of one crate.
struct House {
    sources: Vec<Source>,
    by_module: BTreeMap<Vec<String>, usize>,
    /// Methods of types that have some in several files: (type, method), and the file.
    spread: BTreeMap<(String, String), usize>,
}

impl House {
    fn new(sources: Vec<Source>) -> House {
        let modules = sources.iter().enumerate().map(|(at, source)| (source.module.clone(), at));
        let by_module = modules.collect();
        let (mut spread, mut files) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<usize>>::new());
        for (at, source) in sources.iter().enumerate() {
            for name in lex::impl_blocks(&source.code).map(|(name, _)| name.to_owned()) {
                let methods = source.methods_of(&name);
                spread.extend(methods.into_iter().map(|method| ((name.clone(), method), at)));
                files.entry(name).or_default().insert(at);
            }
        }
        spread.retain(|(name, _), _| files[name].len() > 1);
        House { sources, by_module, spread }
    }

    /// The files that a file needs.
    fn needs(&self, at: usize) -> BTreeSet<usize> {
        let source = &self.sources[at];
        if source.is_face {
            return BTreeSet::new();
        }
        let paths = source.paths.iter().map(|path| &*path.segments);
        let mut needs: BTreeSet<usize> =
            paths.filter_map(|path| self.resolve(&source.module, path, 0)).collect();
        for (name, block) in lex::impl_blocks(&source.code) {
            let on_self = calls(block).filter(|(on, _)| ["self", "Self"].contains(on));
            needs.extend(on_self.filter_map(|(_, method)| self.place_of(name, method)));
        }
        let types: BTreeSet<&String> = self.spread.keys().map(|(name, _)| name).collect();
        for name in types {
            let named = [name.clone(), name.to_lowercase()];
            let on_it = calls(&source.code).filter(|(on, _)| named.iter().any(|name| name == on));
            needs.extend(on_it.filter_map(|(_, method)| self.place_of(name, method)));
        }
        needs.remove(&at);
        needs
    }

    /// The file of a method of a type that has some in several files.
    fn place_of(&self, name: &str, method: &str) -> Option<usize> {
        self.spread.get(&(name.to_owned(), method.to_owned())).copied()
    }

    /// The file in which what a path means is defined, seen from `module`.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match &**first {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => {
                let above = path.iter().take_while(|segment| *segment == "super").count();
                rest = &path[above..];
                module[..module.len().checked_sub(above)?].to_vec()
            }
            _ if self.by_module.contains_key(&child(module, first)) => {
                rest = path;
                module.to_vec()
            }
            _ => return None,
        };
        while let Some((next, others)) = rest.split_first() {
            if !self.by_module.contains_key(&child(&at, next)) {
                break;
            }
            (at, rest) = (child(&at, next), others);
        }
        let place = *self.by_module.get(&at)?;
        let source = &self.sources[place];
        let Some(name) = rest.first() else { return (!source.is_face).then_some(place) };
        if source.defined.contains(name) {
            return Some(place);
        }
        let shown = source.paths.iter().find(|path| path.shown_as.as_ref() == Some(name));
        match shown.filter(|_| depth < SHOWN_MAX) {
            Some(shown) => self.resolve(&at, &shown.segments, depth + 1),
            None => (!source.is_face).then_some(place),
        }
    }
}

fn child(module: &[String], name: &str) -> Vec<String> {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// The paths of `use` lines, and those elsewhere that begin at the crate or above.
fn paths(code: &str) -> Vec<Path> {
    let mut found = Vec::new();
    let mut rest = code;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let is_shown = line.trim_start().starts_with("pub");
        let tree = line.find("use ").filter(|at| {
            let before = line[..*at].trim();
            before.is_empty() || before == "pub" || before.starts_with("pub(")
        });
        if let Some(at) = tree {
            let statement = &rest[at + "use ".len()..];
            let (tree, after) = statement.split_once(';').unwrap_or((statement, ""));
            expand(&[], tree, is_shown, &mut found);
            rest = after;
            continue;
        }
        for root in ["crate::", "super::"] {
            found.extend(line.match_indices(root).map(|(at, _)| inline_path(&line[at..])));
        }
        rest = after;
    }
    found
}

fn inline_path(text: &str) -> Path {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let path = &text[..text.find(|c| !is_part(c)).unwrap_or(text.len())];
    let segments = path.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
    Path { segments: segments.collect(), shown_as: None }
}

/// The paths of a tree of a `use` line.
fn expand(before: &[String], tree: &str, is_shown: bool, found: &mut Vec<Path>) {
    let (path, group) = match tree.find('{') {
        Some(at) => (&tree[..at], Some(&tree[at + 1..tree.rfind('}').unwrap_or(tree.len())])),
        None => (tree, None),
    };
    let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
    let own = path.split("::").map(str::trim).filter(|part| !part.is_empty());
    let mut segments: Vec<String> = before.iter().cloned().chain(own.map(str::to_owned)).collect();
    if let Some(group) = group {
        parts(group).for_each(|part| expand(&segments, part, is_shown, found));
        return;
    }
    if segments.last().is_some_and(|last| last == "self") && segments.len() > 1 {
        segments.pop();
    }
    let name = if alias.is_empty() { segments.last().cloned() } else { Some(alias.trim().into()) };
    found.push(Path { segments, shown_as: name.filter(|_| is_shown) });
}

/// The parts of a list between commas, which may be lists themselves.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let parts = list.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// The calls in a text: on which word, and the function.
fn calls(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut before = "";
    let mut joined = "";
    lex::words(code).filter_map(move |(word, rest)| {
        let on = std::mem::replace(&mut before, word);
        let is_call = rest.starts_with('(') && (joined == "." || joined == "::");
        let rest = rest.strip_prefix("()").unwrap_or(rest);
        joined = ["::", "."].into_iter().find(|join| rest.starts_with(join)).unwrap_or("");
        is_call.then_some((on, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> usize {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File { path: format!("src/{path}"), text: (*text).to_owned() })
            .collect();
        largest(&files.iter().collect::<Vec<_>>(), "src/")
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let c = ("c.rs", "struct C;\n");
        for (a, b, size) in [
            ("use crate::b::B;\nstruct A;\n", "struct B;\n", 0),
            ("use crate::b::B;\nstruct A;\n", "use super::a::{A};\nstruct B;\n", 2),
            ("use crate::{c::C, b::B};\nstruct A;\n", "fn f() -> crate::a::A {}\nstruct B;\n", 2),
            ("use crate::b::B;\nstruct A;\n", "// crate::a::A\nstruct B;\n", 0),
            (
                "use crate::b::B;\nstruct A;\n",
                "struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
                0,
            ),
        ] {
            assert_eq!(circle(&[("a.rs", a), ("b.rs", b), c]), size, "{a} {b}");
        }
    }

    #[test]
    fn a_face_is_seen_through() {
        let face = (
            "b/mod.rs",
            "mod one;\nmod two;\npub(crate) use one::{One, ONE as FIRST};\npub use two::Two;\n",
        );
        for (a, one, size) in [
            ("use crate::b::Two;\nstruct A;\n", "use crate::a::A;\nstruct One;\n", 0),
            ("use crate::b::One;\nstruct A;\n", "use crate::a::A;\nstruct One;\n", 2),
            ("use crate::b::FIRST;\nstruct A;\n", "use crate::a::A;\nconst ONE: u8 = 1;\n", 2),
            ("use crate::b::One;\nstruct A;\n", "use super::Two;\nstruct One;\n", 0),
        ] {
            let (one, two) = (("b/one.rs", one), ("b/two.rs", "struct Two;\n"));
            assert_eq!(circle(&[("a.rs", a), face, one, two]), size, "{a} {one:?}");
        }
    }

    #[test]
    fn methods_of_a_type_that_is_spread_over_files_tie_them() {
        let core = ("core.rs", "struct Core;\nimpl Core {\n    fn now(&self) {}\n}\n");
        let a = "use crate::core::Core;\nimpl Core {\n    fn a(&self) { self.b(); }\n}\n";
        for (b, size) in [
            ("impl Core {\n    fn b(&self) { self.now(); }\n}\n", 0),
            ("impl Core {\n    fn b(&self) { self.a(); }\n}\n", 2),
            ("impl Core {\n    fn b(core: &Core) { core.a(); }\n}\n", 2),
            ("impl Other {\n    fn b(&self) { self.a(); }\n    fn a(&self) {}\n}\n", 0),
        ] {
            assert_eq!(circle(&[core, ("a.rs", a), ("b.rs", b)]), size, "{b}");
        }
    }
}
