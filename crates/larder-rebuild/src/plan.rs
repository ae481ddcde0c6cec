//! The order in which rules must run to make a lost file again.

use std::collections::BTreeMap;

use crate::rule::{Freshness, Input, Rule};
use crate::{Hash, Refusal, RulePath};

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its bytes are there.
    Held,
    /// There is no such file.
    Missing,
    /// Its bytes are lost, and this is how it was made.
    Lost(Result<Box<Rule>, Refusal>),
}

/// A file whose rule needs others to run first.
struct Open {
    file: RulePath,
    id: Hash,
    rule: Rule,
    /// Files from which it is made and that were not considered yet.
    rest: Vec<RulePath>,
}

/// The rules that make `file` again, in the order in which they must run: those of lost inputs
/// first, each once. Empty if the file is not lost.
///
/// # Errors
/// Why that is impossible; or the error of determining the standing of a file.
pub fn plan(
    file: &RulePath,
    mut standing: impl FnMut(&RulePath) -> Result<Standing, Refusal>,
) -> Result<Vec<Rule>, Refusal> {
    let mut done: BTreeMap<Hash, ()> = BTreeMap::new();
    let mut order = Vec::new();
    let mut path: Vec<Open> = Vec::new();
    let mut next = Some(file.clone());
    loop {
        let Some(file) = next.take() else {
            let Some(open) = path.last_mut() else { return Ok(order) };
            next = open.rest.pop();
            if next.is_none() {
                let open = path.pop().expect("it was looked at just now");
                done.insert(open.id, ());
                order.push(open.rule);
            }
            continue;
        };
        let rule = match standing(&file)? {
            Standing::Held => continue,
            Standing::Missing => return Err(Refusal::MissingInput(file)),
            Standing::Lost(Err(Refusal::NoRule)) if !path.is_empty() => {
                return Err(Refusal::LostInput(file));
            }
            Standing::Lost(rule) => *rule?,
        };
        let id = rule.id();
        if let Some(begun) = path.iter().position(|open| open.id == id) {
            return Err(Refusal::Cycle(
                path[begun..].iter().map(|open| open.file.clone()).collect(),
            ));
        }
        if !done.contains_key(&id) {
            let rest = made_from(&rule)?;
            path.push(Open { file, id, rule, rest });
        }
    }
}

/// The files of the volume that have to be there before a rule runs.
fn made_from(rule: &Rule) -> Result<Vec<RulePath>, Refusal> {
    if rule.freshness == Freshness::Original {
        return Ok(Vec::new());
    }
    if let Some(own) = rule.own_inputs().next() {
        return Err(Refusal::Cycle(vec![own.clone()]));
    }
    let files = rule
        .inputs
        .iter()
        .filter(|(place, input)| place.is_in_volume() && matches!(input, Input::File { .. }));
    Ok(files.map(|(place, _)| place.clone()).rev().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Output, System};
    use std::ffi::OsStr;
    use std::time::Duration;

    fn place(name: &str) -> RulePath {
        RulePath::parse(OsStr::new(name)).unwrap()
    }

    /// A rule that makes files from files.
    fn rule(outputs: &str, inputs: &str) -> Rule {
        let hash = Hash::of(b"");
        let names =
            |text: &str| text.chars().map(|name| place(&name.to_string())).collect::<Vec<_>>();
        Rule {
            system: System { machine: String::new(), release: String::new() },
            freshness: Freshness::Version,
            timeout: Duration::from_secs(1),
            root: "/v".into(),
            dir: place(""),
            command: vec!["make".into()],
            environment: BTreeMap::new(),
            inputs: names(inputs)
                .into_iter()
                .map(|one| (one, Input::File { hash, bytes: 0, mode: 0, changed_ns: 0 }))
                .collect(),
            programs: BTreeMap::new(),
            made: Default::default(),
            outputs: names(outputs)
                .into_iter()
                .map(|one| (one, Output { hash, bytes: 0, mode: 0o644 }))
                .collect(),
        }
    }

    /// Plans for a file `a` with these rules and held files; returns the outputs of each rule in
    /// turn.
    fn planned(rules: &[(&str, &str)], held: &str) -> Result<String, Refusal> {
        let rules: Vec<Rule> =
            rules.iter().map(|(outputs, inputs)| rule(outputs, inputs)).collect();
        let order = plan(&place("a"), |file| {
            let name = file.to_string();
            let made = rules.iter().find(|rule| rule.outputs.contains_key(file));
            Ok(match made {
                _ if held.contains(&name) => Standing::Held,
                Some(rule) => Standing::Lost(Ok(Box::new(rule.clone()))),
                None if name == "x" => Standing::Missing,
                None => Standing::Lost(Err(Refusal::NoRule)),
            })
        })?;
        let names = |rule: &Rule| rule.outputs.keys().map(RulePath::to_string).collect::<String>();
        Ok(order.iter().map(names).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn lost_inputs_are_made_first_and_each_once() {
        let cycle = |names: &str| {
            Err(Refusal::Cycle(names.chars().map(|one| place(&one.to_string())).collect()))
        };
        let no = |refusal| Err::<String, _>(refusal);
        for (rules, held, expected) in [
            (&[("a", "b")][..], "ab", Ok(String::new())),
            (&[("a", "b")], "b", Ok("a".into())),
            (&[("a", "bc"), ("b", "d"), ("c", "d"), ("d", "e")], "e", Ok("d b c a".into())),
            (&[("a", "bc"), ("bc", "d")], "d", Ok("bc a".into())),
            (&[("a", "b"), ("b", "c")], "b", Ok("a".into())),
            (&[("a", "b"), ("b", "a")], "", cycle("ab")),
            (&[("a", "b"), ("b", "c"), ("c", "b")], "", cycle("bc")),
            (&[("a", "a")], "", cycle("a")),
            (&[("ab", "c"), ("c", "b")], "", cycle("ac")),
            (&[("a", "x")], "", no(Refusal::MissingInput(place("x")))),
            (&[("a", "y")], "", no(Refusal::LostInput(place("y")))),
            (&[], "", no(Refusal::NoRule)),
        ] {
            assert_eq!(planned(rules, held), expected, "{rules:?} with {held:?}");
        }
    }

    /// Every graph of three files in which each is held or made from some of them: a plan runs each
    /// rule after those that it needs, or a cycle is reported, and exists.
    #[test]
    fn every_small_graph_has_a_plan_or_a_cycle() {
        let names = ["a", "b", "c"];
        for graph in 0u32..1 << 9 {
            let inputs: Vec<String> = (0..3)
                .map(|from| {
                    (0..3)
                        .filter(|to| graph >> (3 * from + to) & 1 == 1)
                        .map(|to| names[to as usize])
                        .collect()
                })
                .collect();
            let rules: Vec<(&str, &str)> =
                names.into_iter().zip(inputs.iter().map(String::as_str)).collect();
            match planned(&rules, "") {
                Ok(order) => {
                    let order: Vec<&str> = order.split(' ').collect();
                    for (at, name) in order.iter().enumerate() {
                        let needs = rules.iter().find(|(one, _)| one == name).unwrap().1;
                        let before = &order[..at];
                        assert!(
                            needs.chars().all(|one| before.contains(&one.to_string().as_str())),
                            "{rules:?}"
                        );
                    }
                }
                Err(Refusal::Cycle(files)) => {
                    for (at, file) in files.iter().enumerate() {
                        let next = files[(at + 1) % files.len()].to_string();
                        let needs =
                            rules.iter().find(|(one, _)| *one == file.to_string()).unwrap().1;
                        assert!(needs.contains(&next), "{rules:?}: {files:?}");
                    }
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// A chain that is longer than any stack of calls.
    #[test]
    fn long_chains_are_planned() {
        let name = |at: u32| place(&at.to_string());
        let order = plan(&name(0), |file| {
            let at: u32 = file.to_string().parse().unwrap();
            if at == 10_000 {
                return Ok(Standing::Held);
            }
            let mut rule = rule("a", "b");
            let (input, output) =
                (rule.inputs.pop_first().unwrap().1, rule.outputs.pop_first().unwrap().1);
            rule.inputs.insert(name(at + 1), input);
            rule.outputs.insert(name(at), output);
            Ok(Standing::Lost(Ok(Box::new(rule))))
        });
        assert_eq!(order.unwrap().len(), 10_000);
    }

    /// Nothing needs to run before for an input with a kept copy.
    #[test]
    fn kept_inputs_are_not_made_again() {
        let mut own = rule("a", "ab");
        own.freshness = Freshness::Original;
        let order = plan(&place("a"), |_| Ok(Standing::Lost(Ok(Box::new(own.clone()))))).unwrap();
        assert_eq!(order, [own]);
    }
}
