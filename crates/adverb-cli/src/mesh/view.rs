//! The matrix in a terminal, live.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adverb::probe::mesh::{Suspect, Verdict};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Size;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::results::Results;
use super::text::{self, COLUMN_WIDTH, Level};
use crate::prose;

/// A terminal that shows the matrix. Dropping it restores the terminal.
pub(super) struct View {
    terminal: DefaultTerminal,
    scroll: Scroll,
}

/// The first row and column of the matrix that the screen shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Scroll {
    row: usize,
    column: usize,
}

/// Whether the terminal shows the matrix.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal, if it shows the matrix.
pub(super) fn restore() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        // At the end, an error of the terminal has no consequence.
        let _ = ratatui::try_restore();
    }
}

impl View {
    /// Takes over the terminal. A panic restores it.
    pub(super) fn open() -> io::Result<View> {
        IS_OPEN.store(true, Ordering::SeqCst);
        ratatui::try_init().map(|terminal| View { terminal, scroll: Scroll::default() })
    }

    pub(super) fn draw(&mut self, results: &Results, elapsed: Duration) -> io::Result<()> {
        let scroll = &mut self.scroll;
        self.terminal.draw(|frame| {
            let lines = lines(results, elapsed, frame.area().as_size(), scroll);
            frame.render_widget(Paragraph::new(lines), frame.area());
        })?;
        Ok(())
    }

    /// Waits for a key until the timeout, and handles all keys. Returns whether the user wants to quit.
    pub(super) fn handle_keys(&mut self, timeout: Duration) -> io::Result<bool> {
        let mut timeout = timeout;
        while event::poll(timeout)? {
            timeout = Duration::ZERO;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && self.scroll.handle(key)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        restore();
    }
}

impl Scroll {
    /// Handles a key, and returns whether the user wants to quit.
    fn handle(&mut self, key: KeyEvent) -> bool {
        const PAGE: usize = 8;
        match key.code {
            KeyCode::Up => self.row = self.row.saturating_sub(1),
            KeyCode::Down => self.row += 1,
            KeyCode::PageUp => self.row = self.row.saturating_sub(PAGE),
            KeyCode::PageDown => self.row += PAGE,
            KeyCode::Left => self.column = self.column.saturating_sub(1),
            KeyCode::Right => self.column += 1,
            KeyCode::Home => *self = Scroll::default(),
            KeyCode::End => *self = Scroll { row: usize::MAX / 2, column: usize::MAX / 2 },
            KeyCode::Char('q') | KeyCode::Esc => return true,
            // In raw mode, the terminal sends no signal.
            KeyCode::Char('c') => return key.modifiers.contains(KeyModifiers::CONTROL),
            _ => {}
        }
        false
    }
}

/// Returns the lines of the screen: the diagnosis, and the part of the last windows' matrix that fits. Limits `scroll`
/// to the matrix.
fn lines(results: &Results, elapsed: Duration, size: Size, scroll: &mut Scroll) -> Vec<Line<'static>> {
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    let members = results.members();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let dim = Style::new().fg(Color::DarkGray);
    let mut lines = vec![Line::from(vec![
        Span::styled("adverb mesh host", bold),
        Span::raw(format!("  {} members, {:.0} s", members.len(), elapsed.as_secs_f64())),
        Span::styled("  (arrow keys scroll; q quits)", dim),
    ])];
    // The matrix keeps at least half of the screen.
    let mut findings = diagnosis(results, width);
    let max_findings = (height / 2).saturating_sub(2).max(1);
    if findings.len() > max_findings {
        let hidden = findings.len() - (max_findings - 1);
        findings.truncate(max_findings - 1);
        findings.push(Line::styled(format!("{hidden} more lines; quit for all"), dim));
    }
    lines.append(&mut findings);

    let label_width = text::label_width(&members);
    let row_count = height.saturating_sub(lines.len() + 2).clamp(1, members.len());
    let column_count = (width.saturating_sub(label_width) / COLUMN_WIDTH).clamp(1, members.len());
    scroll.row = scroll.row.min(members.len() - row_count);
    scroll.column = scroll.column.min(members.len() - column_count);
    let rows = scroll.row..scroll.row + row_count;
    let columns = scroll.column..scroll.column + column_count;
    let mut caption = "loss or median round trip of the last 20 s".to_owned();
    if (row_count, column_count) != (members.len(), members.len()) {
        let range = |range: &std::ops::Range<usize>| format!("{}-{}", range.start + 1, range.end);
        caption += &format!("; rows {}, columns {}", range(&rows), range(&columns));
    }
    lines.push(Line::styled(caption, dim));
    let headings: String = columns.clone().map(text::heading).collect();
    lines.push(Line::styled(" ".repeat(label_width) + &headings, bold));
    for row in rows {
        let source = members[row];
        let mut spans = vec![Span::styled(text::label(row, source, label_width), bold)];
        for column in columns.clone() {
            let (text, style) = match row == column {
                true => ("-".to_owned(), dim),
                false => {
                    let cell = text::cell(&results.summary(source, members[column], true));
                    (cell.text, style(cell.level))
                }
            };
            spans.push(Span::styled(format!("{text:>COLUMN_WIDTH$}"), style));
        }
        lines.push(Line::from(spans));
    }
    lines
}

fn diagnosis(results: &Results, width: usize) -> Vec<Line<'static>> {
    let color = match results.diagnosis.verdict() {
        Verdict::Healthy => Color::Green,
        Verdict::Faulty => Color::Red,
        Verdict::NotEnoughEvidence => Color::Yellow,
    };
    let current = text::findings(results).into_iter().map(|text| (text, Style::new().fg(color)));
    let is_current =
        |suspect: &Suspect| results.diagnosis.faults.iter().any(|fault| fault.suspect == *suspect);
    let earlier =
        results.named.iter().filter(|(_, fault)| !is_current(&fault.suspect)).map(|(time, fault)| {
            let text = format!("earlier, after {:.0} s: {fault}", time.as_secs_f64());
            (text, Style::new().fg(Color::DarkGray))
        });
    let mut lines = Vec::new();
    for (text, style) in current.chain(earlier) {
        let wrapped = prose::wrap_at(&text, width);
        lines.extend(wrapped.lines().map(|line| Line::styled(line.to_owned(), style)));
    }
    lines
}

fn style(level: Level) -> Style {
    match level {
        Level::Unknown => Style::new().fg(Color::DarkGray),
        Level::Good => Style::new().fg(Color::Green),
        Level::Suspicious => Style::new().fg(Color::Yellow),
        Level::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::samples;
    use super::*;

    fn texts(lines: &[Line<'_>]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn screen_shows_the_matrix_and_the_fault_in_colors() {
        let size = Size::new(120, 40);
        let lines = lines(&samples::lossy(5), Duration::from_secs(10), size, &mut Scroll::default());
        let texts = texts(&lines);
        assert!(texts[0].starts_with("adverb mesh host  5 members, 10 s"), "{}", texts[0]);
        assert!(texts[1].starts_with("fault: the NIC 10.0.0.3"), "{texts:?}");
        let row = texts.iter().position(|text| text.starts_with("  2 ")).expect("a row");
        assert_eq!(texts[row], "  2 10.0.0.2    23µs      -    10%   23µs   23µs");
        assert_eq!(lines[row].spans[3].style.fg, Some(Color::Red));
        assert_eq!(lines[row].spans[1].style.fg, Some(Color::Green));
    }

    #[test]
    fn a_matrix_that_is_larger_than_the_screen_is_scrolled_below_the_diagnosis() {
        let results = samples::lossy(12);
        let mut scroll = Scroll::default();
        for (size, keys) in [((80, 24), &[][..]), ((80, 24), &[KeyCode::End]), ((80, 12), &[KeyCode::Down])] {
            let size = Size::from(size);
            for &key in keys {
                assert!(!scroll.handle(key.into()));
            }
            let lines = lines(&results, Duration::from_secs(10), size, &mut scroll);
            let texts = texts(&lines);
            assert!(lines.len() <= usize::from(size.height), "{texts:?}");
            assert!(lines.iter().all(|line| line.width() <= usize::from(size.width)), "{texts:?}");
            assert!(texts[1].starts_with("fault: the NIC 10.0.0.3"), "{texts:?}");
            if keys == [KeyCode::End] {
                assert!(texts.last().is_some_and(|text| text.starts_with(" 12 10.0.0.12 ")), "{texts:?}");
                assert!(texts.iter().any(|text| text.ends_with("→12")), "{texts:?}");
            }
        }
        assert!(scroll.handle(KeyCode::Char('q').into()));
    }
}
