//! The report: well-formed, complete and honest whatever the records hold. Nothing is compared with
//! a stored page; what must be true of every page is checked on pages of many kinds.

mod looks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use larder_bench::published;
use larder_bench::record::{Run, Sample, Target, Test};
use larder_bench::report::write;
use proptest::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};

use crate::made_up::{self, HOSTILE};

/// Texts of the three files.
struct Report {
    html: String,
    markdown: String,
    csv: String,
}

fn report(runs: &[Run]) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let written = write(runs, &[], directory.path()).unwrap();
    let read = |path| fs::read_to_string(path).unwrap();
    Report { html: read(written.html), markdown: read(written.markdown), csv: read(written.csv) }
}

/// Parses a page as XML and checks what must be true of every page; gives it to `then`.
fn check_page(html: &str, then: impl FnOnce(&Document<'_>)) {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let page = Document::parse_with_options(html, options).unwrap();
    let mut ids = BTreeSet::new();
    for node in page.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(!["script", "img", "iframe", "object", "b"].contains(&name), "<{name}>");
        for attribute in node.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            assert!(!key.starts_with("on") && key != "style" && key != "src", "{key}");
            if key == "href" {
                assert!(value.starts_with('#') || value.starts_with("data:"), "{value}");
            }
            if key == "id" {
                assert!(ids.insert(value.to_owned()), "{value} is there twice");
            }
        }
    }
    for svg in
        page.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg")))
    {
        check_drawing(svg);
    }
    then(&page);
}

/// A drawing is named, and what it draws is inside.
fn check_drawing(svg: Node<'_, '_>) {
    let names = svg.attribute("aria-labelledby").unwrap().split(' ');
    for name in names {
        let named = svg.children().find(|child| child.attribute("id") == Some(name)).unwrap();
        assert!(named.text().is_some_and(|text| !text.trim().is_empty()), "{name} is empty");
    }
    let size = |key: &str| svg.attribute(key).unwrap().parse::<f64>().unwrap();
    let (width, height) = (size("width"), size("height"));
    for shape in svg.descendants().filter(Node::is_element).skip(1) {
        for attribute in shape.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            if matches!(key, "class" | "id" | "text-anchor") {
                continue;
            }
            assert!(!value.contains("NaN") && !value.contains("inf"), "{key}={value}");
            let limit = match key {
                "x" | "x1" | "x2" | "width" => width,
                "y" | "y1" | "y2" | "height" => height,
                _ => continue,
            };
            let value: f64 = value.parse().unwrap();
            assert!((-1.0..=limit + 1.0).contains(&value), "{key}={value} of {limit}");
        }
    }
}

/// All texts of a page, or of a part of it, with plain spaces.
fn text_of(node: Node<'_, '_>) -> String {
    let text: String =
        node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect();
    text.replace('\u{a0}', " ")
}

fn element<'a>(page: &'a Document<'_>, id: &str) -> Node<'a, 'a> {
    page.descendants().find(|node| node.attribute("id") == Some(id)).unwrap()
}

fn sample(target: &str, round: u32, value: Option<f64>) -> Sample {
    let failed = value.is_none().then(|| "it broke".to_owned());
    Sample { target: target.to_owned(), round, value, failed, ..Sample::default() }
}

/// Name, copies, swept number, unit.
type Shape = (&'static str, u32, &'static [(&'static str, f64)], &'static str);

/// A suite with little in it, of the kind that its charts expect.
fn small(suite: &str, targets: &[&str], values: impl Fn(usize, &str) -> Option<f64>) -> Run {
    let mut run = made_up::badros();
    run.suite = suite.to_owned();
    let target = |name: &&str| Target { name: (*name).to_owned(), ..Target::default() };
    run.targets = targets.iter().map(target).collect();
    let tests: [Shape; 4] = match suite {
        "fscache" => [
            ("None", 1, &[], "s"),
            ("COLD", 1, &[], "s"),
            ("HOT", 1, &[], "s"),
            ("Other", 1, &[], "s"),
        ],
        "mbfs" => [
            ("untar", 1, &[], "s"),
            ("untar", 5, &[], "s"),
            ("edit", 1, &[], "s"),
            ("edit", 10, &[], "s"),
        ],
        "basic5" => [
            ("write", 1, &[("file size MB", 20.0)], "s"),
            ("write", 1, &[("file size MB", 40.0)], "s"),
            ("read", 1, &[("file size MB", 20.0)], "s"),
            ("read-tcp", 1, &[("file size MB", 20.0)], "s"),
        ],
        "snapdragon" => [
            ("read", 6, &[("file size KB", 4.0)], "s"),
            ("scale", 2, &[("disks", 2.0)], "s"),
            ("latency", 1, &[], "s"),
            ("andrew-copy", 1, &[], "s"),
        ],
        _ => [
            ("ls", 1, &[], "s"),
            ("ls", 4, &[], "s"),
            ("untar", 1, &[], "s"),
            ("untar", 4, &[], "s"),
        ],
    };
    run.tests = tests
        .iter()
        .enumerate()
        .map(|(index, (name, copies, at, unit))| Test {
            name: (*name).to_owned(),
            copies: *copies,
            at: at.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect(),
            unit: (*unit).to_owned(),
            more_is_better: false,
            samples: targets
                .iter()
                .map(|target| sample(target, 0, values(index, target)))
                .collect(),
        })
        .collect();
    run
}

const SUITES: [&str; 6] = ["badros", "fscache", "mbfs", "basic5", "snapdragon", "another"];

#[test]
fn made_up_runs_make_a_page_that_needs_nothing_from_elsewhere() {
    let report = report(&made_up::all());
    check_page(&report.html, |page| {
        let text = text_of(page.root_element());
        assert!(text.contains(made_up::MADE_UP));
        for source in published::SOURCES {
            assert!(text.contains(source.title) && text.contains(source.authors), "{source:?}");
        }
        for state in published::FSCACHE_STATES {
            assert!(text.contains(&format!("{} s", state.printed_s[0])), "{state:?}");
        }
        assert!(
            text.contains("asked for 10 Mbit/s, measured 9.41 Mbit/s with a round trip of 712 µs")
        );
    });
    // The only address is the name of the markup languages.
    let addresses = report.html.matches("http").count();
    let names = report.html.matches("http://www.w3.org/2000/svg").count()
        + report.html.matches("http://www.w3.org/1999/xhtml").count()
        + report.html.matches("http-equiv").count();
    assert_eq!(addresses, names);
}

#[test]
fn the_same_records_make_the_same_files() {
    let (one, two) = (report(&made_up::all()), report(&made_up::all()));
    assert_eq!((one.html, one.markdown, one.csv), (two.html, two.markdown, two.csv));
}

#[test]
fn every_test_on_every_target_has_its_number_in_page_and_markdown() {
    for suite in SUITES {
        let targets = ["larder", "plain", "rival"];
        let number = |index: usize, target: &str| {
            let place = targets.iter().position(|name| *name == target).unwrap();
            1.01 + 0.1 * index as f64 + 0.03 * place as f64
        };
        let report = report(&[small(suite, &targets, |index, target| Some(number(index, target)))]);
        check_page(&report.html, |page| {
            let text = text_of(element(page, &format!("{suite}-0")));
            let markdown = report.markdown.replace('\u{a0}', " ");
            for index in 0..4 {
                for target in targets {
                    let number = format!("{:.2} s", number(index, target));
                    assert!(text.contains(&number), "{suite}: {number} of {target} in the page");
                    assert!(markdown.contains(&number), "{suite}: {number} of {target}");
                }
            }
        });
    }
}

#[test]
fn a_failure_stands_in_its_place_with_its_reason_and_is_never_fast() {
    for suite in SUITES {
        let broken = |index: usize, target: &str| {
            (target != "larder" || index.is_multiple_of(2)).then_some(2.0)
        };
        let mut run = small(suite, &["larder", "plain"], broken);
        for (index, test) in run.tests.iter_mut().enumerate() {
            for sample in test.samples.iter_mut().filter(|sample| sample.failed.is_some()) {
                sample.failed = Some(format!("reason {index} <of> {suite}"));
            }
        }
        let report = report(&[run]);
        check_page(&report.html, |page| {
            let section = element(page, &format!("{suite}-0"));
            for index in [1, 3] {
                let reason = format!("failed: reason {index} <of> {suite}");
                let cells = section
                    .descendants()
                    .filter(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", "td")));
                let told = cells.filter(|cell| text_of(*cell).contains(&reason)).count();
                assert!(told >= 2, "{suite}: {reason} stands in {told} cells");
                let drawn = section
                    .descendants()
                    .filter(|node| {
                        node.tag_name().namespace() == Some("http://www.w3.org/2000/svg")
                    })
                    .filter(|node| {
                        node.is_element() && text_of(*node).contains(&format!("reason {index}"))
                    })
                    .count();
                assert!(drawn >= 1, "{suite}: {reason} is not in a chart");
                assert!(
                    report.markdown.contains(&format!("failed: reason {index} \\<of\\> {suite}"))
                );
            }
            let better =
                page.descendants().any(|node| node.attribute("class") == Some("is-better"));
            assert!(!better, "{suite}: a failure was called faster");
        });
        let told = "2 of 4 failed or were not measured on larder or plain";
        assert!(report.markdown.contains(told), "{suite}");
    }
}

#[test]
fn what_was_not_measured_says_so() {
    for suite in SUITES {
        let mut run = small(suite, &["larder", "plain"], |_, _| Some(2.0));
        for test in &mut run.tests {
            test.samples.retain(|sample| sample.target != "plain");
        }
        let report = report(&[run]);
        check_page(&report.html, |page| {
            let text = text_of(element(page, &format!("{suite}-0")));
            assert!(text.contains("plain not measured"), "{suite}");
            let charts: String = page
                .descendants()
                .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
                .map(|node| text_of(node) + "\n")
                .collect();
            assert!(charts.contains("not measured"), "{suite}: {charts}");
        });
    }
}

#[test]
fn verdicts_stand_in_words_and_follow_the_interval() {
    let mut run = small("badros", &["larder", "plain"], |_, _| Some(2.0));
    for test in &mut run.tests {
        test.samples = (0..5)
            .flat_map(|round| {
                let value = 1.0 + 0.01 * f64::from(round);
                [sample("larder", round, Some(value)), sample("plain", round, Some(2.0))]
            })
            .collect();
    }
    let page = report(&[run.clone()]);
    assert!(page.markdown.contains("larder faster"));
    assert!(page.html.contains("\"is-better\""));
    // The same medians, but the rounds disagree.
    for sample in run.tests.iter_mut().flat_map(|test| &mut test.samples) {
        if sample.target == "plain" {
            sample.value = Some(if sample.round.is_multiple_of(2) { 0.2 } else { 9.0 });
        }
    }
    let page = report(&[run.clone()]);
    assert!(page.markdown.contains("no difference shown") && !page.html.contains("\"is-better\""));
    for test in &mut run.tests {
        test.samples.retain(|sample| sample.round == 0);
    }
    let page = report(&[run]);
    assert!(page.markdown.contains("nothing concluded") && !page.html.contains("\"is-better\""));
}

#[test]
fn a_target_of_few_tests_has_a_note_in_place_of_rows() {
    let report = report(&[made_up::badros()]);
    check_page(&report.html, |page| {
        let svg = ("http://www.w3.org/2000/svg", "text");
        let texts = page.descendants().filter(|node| node.has_tag_name(svg)).map(text_of);
        let texts: Vec<String> = texts.filter(|text| text.contains("plain-sync")).collect();
        assert!(texts.contains(&"plain-sync: measured in small-writes only".to_owned()));
        // In two figures for two numbers of copies, at two widths: a note and a row.
        assert!(texts.len() <= 2 * 2 * (1 + 13 + 1), "{}", texts.len());
    });
}

#[test]
fn the_published_states_are_made_of_tests_and_targets() {
    let report = report(&[made_up::fscache()]);
    check_page(&report.html, |page| {
        let text = text_of(element(page, "fscache-0"));
        for words in ["COLD without a cache", "PGCACHE of local", "26.042 s", "0.104 s, 0.107 s"] {
            assert!(text.contains(words), "{words}");
        }
        // The plain client's COLD is None, so its ratio to None is one.
        let rows = page
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", "tr")));
        let ratio = rows
            .map(text_of)
            .any(|row| row.starts_with("COLD") && row.contains("1.00 (1.00 to 1.00)"));
        assert!(ratio, "{text}");
    });
}

#[test]
fn an_interrupted_run_says_so_before_anything_else() {
    let runs = made_up::all();
    let report = report(&runs);
    let (told, first) = (report.html.find("Interrupted: basic5"), report.html.find("<figure"));
    assert!(told.unwrap() < first.unwrap());
    assert!(report.markdown.find("Interrupted: basic5").unwrap() < 600);
}

#[test]
fn missing_targets_are_named_at_the_top_and_in_the_suite() {
    let report = report(&made_up::all());
    check_page(&report.html, |page| {
        for id in ["conditions", "mbfs-2"] {
            assert!(text_of(element(page, id)).contains("juicefs: not installed"), "{id}");
        }
    });
    let is_told =
        |line: &str| line.starts_with("- mbfs, smoke") && line.contains(": juicefs: not installed");
    assert!(report.markdown.lines().any(is_told));
}

#[test]
fn knees_are_marked_and_published_places_stand_beside() {
    let report = report(&[made_up::basic5()]);
    check_page(&report.html, |page| {
        let text = text_of(element(page, "basic5-0"));
        assert!(text.contains("Knees (file size MB): larder udp at 100 to 140"), "{text}");
        assert!(text.contains("write: rate against file size"));
        let of = |class: &str| {
            page.descendants().filter(|node| node.attribute("class") == Some(class)).count()
        };
        // Per width: a ring in each legend, and at each knee of five curves of writes and of reads.
        assert_eq!(of("ring"), 2 * (2 + 10));
        assert_eq!(of("place"), 2 * (1 + 2));
    });
}

#[test]
fn hostile_text_is_shown_and_does_nothing() {
    for suite in SUITES {
        let long = "x".repeat(200);
        let mut run = small(suite, &["larder", HOSTILE, &long], |index, target| {
            (target == "larder" || index.is_multiple_of(2)).then_some(1.5)
        });
        for test in &mut run.tests {
            for sample in &mut test.samples {
                sample.failed = sample.failed.as_ref().map(|_| HOSTILE.repeat(40));
                sample.rpcs = Some(BTreeMap::from([(HOSTILE.to_owned(), 7)]));
                sample.extra = BTreeMap::from([(HOSTILE.to_owned(), 7.0)]);
            }
        }
        run.method = vec![HOSTILE.to_owned()];
        run.command = HOSTILE.to_owned();
        run.machine.cpu = HOSTILE.to_owned();
        run.tests[3].unit = HOSTILE.to_owned();
        run.tests[2].name = HOSTILE.to_owned();
        run.started = HOSTILE.to_owned();
        let report = report(&[run]);
        check_page(&report.html, |page| {
            let text = text_of(page.root_element());
            assert!(
                text.contains("<script>alert('x')</script>") && text.contains("אבג"),
                "{suite}"
            );
            assert!(!text.contains('\u{202e}'), "{suite}");
            for drawn in page
                .descendants()
                .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
            {
                assert!(text_of(drawn).chars().count() < 130, "{suite}: {}", text_of(drawn));
            }
        });
        let unescaped = report.markdown.replace("\\<", "");
        assert!(!unescaped.contains("<script"), "{suite}");
    }
}

#[test]
fn odd_runs_make_a_page() {
    check_page(&report(&made_up::odd()).html, |_| ());
}

#[test]
fn runs_with_little_in_them_make_a_report() {
    check_page(&report(&[]).html, |page| {
        assert!(text_of(page.root_element()).contains("There is no run to report."));
    });
    for suite in SUITES {
        let nothing = Run { tests: Vec::new(), link: None, ..small(suite, &[], |_, _| None) };
        let unmeasured =
            Run { tests: vec![Test::default()], ..small(suite, &["larder"], |_, _| None) };
        let one = Run { link: None, ..small(suite, &["larder"], |_, _| Some(1.0)) };
        let failed = small(suite, &["larder", "plain"], |_, _| None);
        let far = small(suite, &["larder", "plain"], |index, _| {
            Some([1e-14, 1e19, 1e300, f64::NAN][index])
        });
        let unlisted =
            Run { targets: Vec::new(), ..small(suite, &["plain", "b"], |_, _| Some(3.0)) };
        for run in [nothing, unmeasured, one, failed, far, unlisted] {
            check_page(&report(&[run.clone(), run]).html, |_| ());
        }
    }
}

/// Fields of comma-separated values, by RFC 4180.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted && chars.peek() == Some(&'\n') => {
                chars.next();
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(!quoted && row.is_empty() && field.is_empty());
    rows
}

#[test]
fn every_sample_is_a_row_of_the_csv() {
    let mut runs = made_up::all();
    runs[0].tests[0].samples[0].target = HOSTILE.to_owned();
    runs[0].tests[0].samples[1].failed = Some(" spaces and\r\nlines, \"quotes\" ".to_owned());
    let report = report(&runs);
    let mut rows = parse_csv(&report.csv).into_iter();
    let names = rows.next().unwrap();
    let mut rows: Vec<BTreeMap<String, String>> =
        rows.map(|row| names.iter().cloned().zip(row).collect()).collect();
    rows.reverse();
    for (index, run) in runs.iter().enumerate() {
        for test in &run.tests {
            for sample in &test.samples {
                let row = rows.pop().unwrap();
                assert_eq!((row["run"].clone(), &row["suite"]), (index.to_string(), &run.suite));
                assert_eq!((&row["test"], &row["unit"]), (&test.name, &test.unit));
                assert_eq!(
                    (&row["target"], row["round"].clone()),
                    (&sample.target, sample.round.to_string())
                );
                assert_eq!(row["value"].parse::<f64>().ok(), sample.value);
                assert_eq!(row["failed"], sample.failed.clone().unwrap_or_default());
                let total = sample.rpcs.as_ref().map(|rpcs| rpcs.values().sum::<u64>());
                assert_eq!(row["rpcs_total"].parse::<u64>().ok(), total);
                if let Some(rpcs) = &sample.rpcs {
                    let read: BTreeMap<String, u64> = serde_json::from_str(&row["rpcs"]).unwrap();
                    assert_eq!(&read, rpcs);
                }
                if !test.at.is_empty() {
                    let read: BTreeMap<String, f64> = serde_json::from_str(&row["at"]).unwrap();
                    assert_eq!(read, test.at);
                }
            }
        }
    }
    assert!(rows.is_empty());
}

#[test]
fn the_page_carries_the_records() {
    let runs = made_up::all();
    let report = report(&runs);
    check_page(&report.html, |page| {
        let files = page.descendants().filter(|node| node.attribute("download").is_some());
        let names: Vec<&str> = files.filter_map(|node| node.attribute("download")).collect();
        let expected = [
            "report.csv",
            "badros-0.json",
            "fscache-1.json",
            "mbfs-2.json",
            "basic5-3.json",
            "snapdragon-4.json",
        ];
        assert_eq!(names, expected);
    });
}

fn random_run() -> impl Strategy<Value = Run> {
    let value = prop_oneof![
        4 => (-15.0_f64..20.0).prop_map(|power| Some(10_f64.powf(power))),
        1 => Just(None),
        1 => any::<f64>().prop_map(Some),
    ];
    let sample = ("[ab<é\u{202e}]{0,3}", 0_u32..4, value, proptest::option::of(0_u64..1 << 60))
        .prop_map(|(target, round, value, rpcs)| Sample {
            rpcs: rpcs.map(|count| BTreeMap::from([("READ".to_owned(), count)])),
            ..self::sample(&target, round, value)
        });
    let samples = proptest::collection::vec(sample, 0..12);
    let at = proptest::collection::btree_map("(file size MB|disks|x)", any::<f64>(), 0..3);
    let test = (
        "(read|write|None|HOT|untar|latency|scale|<)",
        any::<u32>(),
        at,
        "(s|us|B/s|<)",
        any::<bool>(),
        samples,
    )
        .prop_map(|(name, copies, at, unit, more_is_better, samples)| Test {
            name,
            copies,
            at,
            unit,
            more_is_better,
            samples,
        });
    let tests = proptest::collection::vec(test, 0..8);
    (0..SUITES.len(), tests).prop_map(|(suite, tests)| Run {
        tests,
        ..small(SUITES[suite], &["a", "larder"], |_, _| None)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_records_make_a_page(run in random_run()) {
        check_page(&report(&[run]).html, |_| ());
    }
}
