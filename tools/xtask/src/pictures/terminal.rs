//! Pictures of terminals.

use std::fmt::Write;

use super::escape;

/// The number of lines of probes that are shown.
const PROBE_LINES: usize = 3;
/// The width of a character and the height of a line.
const CELL: (f64, f64) = (7.8, 18.0);
const MARGIN: f64 = 16.0;

/// Returns the picture of a command and its output. Most lines of probes are left out.
pub(super) fn picture(command: &str, output: &str) -> String {
    let mut lines = vec![(Color::Prompt, format!("$ {command}"))];
    let mut probes = 0;
    for line in output.lines() {
        if line.contains(": probe ") {
            probes += 1;
            match probes {
                ..=PROBE_LINES => lines.push((Color::Plain, line.to_owned())),
                4 => lines.push((Color::Faint, "⋮".to_owned())),
                _ => {}
            }
            continue;
        }
        let color = match line {
            line if line.contains(" loses ") => Color::Alarm,
            line if line.contains('█') => Color::Bar,
            _ => Color::Plain,
        };
        lines.push((color, line.to_owned()));
    }
    let columns = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
    let (width, height) =
        (2.0 * MARGIN + columns as f64 * CELL.0, 2.0 * MARGIN + lines.len() as f64 * CELL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#15181e\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\" xml:space=\"preserve\">\n"
    );
    for (index, (color, line)) in lines.iter().enumerate() {
        let y = MARGIN + (index as f64 + 0.75) * CELL.1;
        text(&mut svg, *color, line, y);
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Color {
    Prompt,
    Plain,
    Faint,
    Bar,
    Alarm,
}

impl Color {
    const fn name(self) -> &'static str {
        match self {
            Color::Prompt => "#7ee787",
            Color::Plain => "#d7dce2",
            Color::Faint => "#7d8590",
            Color::Bar => "#79c0ff",
            Color::Alarm => "#ffa657",
        }
    }
}

/// Adds a line. Each part between spaces is placed by itself, so that columns are in line with any font.
fn text(svg: &mut String, color: Color, line: &str, y: f64) {
    let characters: Vec<char> = line.chars().collect();
    let mut start = 0;
    while start < characters.len() {
        if characters[start] == ' ' {
            start += 1;
            continue;
        }
        // Single spaces don't end a part.
        let is_end =
            |&index: &usize| characters[index..].starts_with(&[' ', ' ']) || index == characters.len();
        let end = (start..=characters.len()).find(is_end).unwrap_or(characters.len());
        let part: String = characters[start..end].iter().collect();
        let x = MARGIN + start as f64 * CELL.0;
        let width = (end - start) as f64 * CELL.0;
        _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{}\" textLength=\"{width:.1}\">{}</text>",
            color.name(),
            escape(&part)
        );
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_probes_are_left_out() {
        let probes: String = (0..9).map(|number| format!("10.0.0.1: probe {number}: <lost>\n")).collect();
        let svg = picture("adverb ping", &format!("PING\n{probes}\npath 1  loses probes: 10 %\n"));
        assert_eq!(svg.matches("&lt;lost&gt;").count(), 3);
        assert_eq!(svg.matches('⋮').count(), 1);
        // The two parts of a line have the same color.
        assert_eq!(svg.matches("#ffa657").count(), 2);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
