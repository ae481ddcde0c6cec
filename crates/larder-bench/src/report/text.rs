//! Text from records, made fit for markup: names come from mount tables, reasons from other
//! programs.
//!
//! Invariants: what [`escape`] gives is legal inside an XML element and inside a quoted attribute;
//! no control character and no bidirectional override survives, so a name cannot reorder the line
//! it stands in. How wide text is drawn is estimated, for no font is shipped.

/// Longest text shown, in characters. A reason may be the whole output of a program.
const SHOWN_MAX: usize = 2000;

/// The text on one line, without characters that act on what surrounds them, at most
/// [`SHOWN_MAX`] characters of it.
pub(crate) fn clean(text: &str) -> String {
    let shown = |c: char| match c {
        // A space that does not break keeps a number and its unit together.
        '\u{a0}' => c,
        _ if c.is_whitespace() => ' ',
        _ if acts(c) => '\u{fffd}',
        _ => c,
    };
    cut(&text.chars().map(shown).collect::<String>(), SHOWN_MAX)
}

/// Whether a character is a control, a bidirectional mark or override, or illegal in XML. Joiners
/// are left alone: scripts need them.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{feff}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Clean text for an XML element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// At most `count` characters, the last an ellipsis if something was cut.
pub(crate) fn cut(text: &str, count: usize) -> String {
    if text.chars().count() <= count {
        return text.to_owned();
    }
    let kept: String = text.chars().take(count.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// About how wide a text is drawn, in pixels, in a sans-serif font of `size` pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size
}

/// Advance of a character as a share of the font size, of a wide font: rather too large than too
/// small.
fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.34,
        ' ' | '\u{a0}' | 'f' | 'r' | 't' | '-' | '(' | ')' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '—' | '…' => 0.98,
        'A'..='Z' => 0.73,
        _ if c < '\u{1100}' => 0.635,
        _ => 1.05,
    }
}

/// As much of a clean text as fits into `pixels`.
pub(crate) fn fit(text: &str, pixels: f64, size: f64) -> String {
    let text = clean(text);
    if width(&text, size) <= pixels {
        return text;
    }
    let mut room = pixels - width("…", size);
    let fits = text.chars().take_while(|c| {
        room -= em(*c) * size;
        room >= 0.0
    });
    let kept: String = fits.collect();
    format!("{}…", kept.trim_end())
}

/// A clean text in lines of at most `pixels`, at most `lines_max` of them. A longer word is cut.
pub(crate) fn wrap(text: &str, pixels: f64, size: f64, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in clean(text).split(' ').filter(|word| !word.is_empty()) {
        let last = lines.len() - 1;
        let joined = if lines[last].is_empty() {
            word.to_owned()
        } else {
            format!("{} {word}", lines[last])
        };
        if width(&joined, size) <= pixels || lines[last].is_empty() {
            lines[last] = joined;
        } else if lines.len() < lines_max {
            lines.push(word.to_owned());
        } else {
            lines[last] = format!("{joined} …");
            break;
        }
    }
    lines.into_iter().map(|line| fit(&line, pixels, size)).collect()
}

/// A name that can stand in an id or a file name: letters, digits and dashes.
pub(crate) fn slug(text: &str) -> String {
    let dashed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let slug: String = text.chars().take(40).map(dashed).collect();
    if slug.is_empty() { "unnamed".to_owned() } else { slug }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name with everything that markup, bidirectional text and long lines can do.
    const HOSTILE: &str = "<b a=\"1\" c='2'>&amp;\u{202e}\u{0}\u{fffe}\n אבג";

    #[test]
    fn escaped_text_is_inert() {
        let escaped = escape(HOSTILE);
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{202e}', '\0', '\u{fffe}', '\n']));
        assert!(escaped.contains("&amp;amp;") && escaped.contains("אבג"), "{escaped}");
    }

    #[test]
    fn text_is_cut_to_its_room() {
        let long = "x".repeat(3000);
        assert_eq!(clean(&long).chars().count(), SHOWN_MAX);
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        for pixels in [0.0, 20.0, 55.5, 200.0] {
            assert!(width(&fit(&long, pixels, 12.0), 12.0) <= pixels.max(width("…", 12.0)));
        }
    }

    #[test]
    fn wrapped_lines_fit_and_are_few() {
        let text = "failed: the server gave back other bytes than were written to it before";
        let lines = wrap(text, 120.0, 12.0, 3);
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| width(line, 12.0) <= 120.0), "{lines:?}");
        assert!(lines[2].ends_with('…'));
        assert_eq!(wrap("a b", 500.0, 12.0, 1), ["a b"]);
        assert_eq!(wrap("", 500.0, 12.0, 1), [""]);
    }

    #[test]
    fn slugs_are_plain() {
        assert_eq!(slug("Basic 5/<x>"), "basic-5--x-");
        assert_eq!(slug(""), "unnamed");
    }
}
