//! The matrix in a terminal, live.

use std::io;
use std::time::Duration;

use adverb::probe::mesh::{Suspect, Verdict};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::results::Results;
use super::text::{self, Level};

/// A terminal that shows the matrix. Dropping it restores the terminal.
pub(super) struct View(DefaultTerminal);

impl View {
    /// Takes over the terminal.
    pub(super) fn open() -> io::Result<View> {
        ratatui::try_init().map(View)
    }

    /// Draws the results.
    pub(super) fn draw(&mut self, results: &Results, elapsed: Duration) -> io::Result<()> {
        self.0.draw(|frame| {
            let paragraph = Paragraph::new(lines(results, elapsed)).wrap(Wrap { trim: false });
            frame.render_widget(paragraph, frame.area());
        })?;
        Ok(())
    }

    /// Waits for a key until the timeout, and returns whether the user wants to quit.
    pub(super) fn wants_to_quit(&mut self, timeout: Duration) -> io::Result<bool> {
        if !event::poll(timeout)? {
            return Ok(false);
        }
        let Event::Key(key) = event::read()? else { return Ok(false) };
        let is_quit = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            // In raw mode, the terminal sends no signal.
            KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
            _ => false,
        };
        Ok(is_quit && key.kind == KeyEventKind::Press)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // At the end, an error of the terminal has no consequence.
        let _ = ratatui::try_restore();
    }
}

/// Returns the lines of the screen: the last windows' matrix, and the diagnosis.
fn lines(results: &Results, elapsed: Duration) -> Vec<Line<'static>> {
    let members = results.members();
    let width = members.iter().map(|member| member.to_string().len()).max().unwrap_or_default();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let dim = Style::new().fg(Color::DarkGray);
    let mut lines = vec![Line::from(vec![
        Span::styled("adverb mesh host", bold),
        Span::raw(format!("  {} members, {:.0} s", members.len(), elapsed.as_secs_f64())),
        Span::styled("  (loss or median round trip of the last 20 s; q quits)", dim),
    ])];
    let mut header = format!("{:width$}     ", "");
    for n in 1..=members.len() {
        header += &format!("{:>7}", format!("→{n}"));
    }
    lines.push(Line::styled(header, bold));
    for (n, &source) in members.iter().enumerate() {
        let mut spans = vec![Span::styled(format!("{:>3} {:width$} ", n + 1, source.to_string()), bold)];
        for &destination in &members {
            let (text, style) = match source == destination {
                true => ("-".to_owned(), dim),
                false => {
                    let cell = text::cell(&results.summary(source, destination, true));
                    (cell.text, style(cell.level))
                }
            };
            spans.push(Span::styled(format!("{text:>7}"), style));
        }
        lines.push(Line::from(spans));
    }
    lines.push(Line::default());
    let color = match results.diagnosis.verdict() {
        Verdict::Healthy => Color::Green,
        Verdict::Faulty => Color::Red,
        Verdict::NotEnoughEvidence => Color::Yellow,
    };
    let diagnosis = results.diagnosis.to_string();
    lines.extend(diagnosis.lines().map(|line| Line::styled(line.to_owned(), Style::new().fg(color))));
    let is_current =
        |suspect: &Suspect| results.diagnosis.faults.iter().any(|fault| fault.suspect == *suspect);
    for (time, fault) in results.named.iter().filter(|(_, fault)| !is_current(&fault.suspect)) {
        lines.push(Line::styled(format!("earlier, after {:.0} s: {fault}", time.as_secs_f64()), dim));
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

    #[test]
    fn screen_shows_the_matrix_and_the_fault_in_colors() {
        let lines = lines(&samples::lossy(), Duration::from_secs(10));
        let texts: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert!(texts[0].starts_with("adverb mesh host  5 members, 10 s"), "{}", texts[0]);
        assert_eq!(texts[3], "  2 10.0.0.2    23µs      -    10%   23µs   23µs");
        assert_eq!(lines[3].spans[3].style.fg, Some(Color::Red));
        assert_eq!(lines[3].spans[1].style.fg, Some(Color::Green));
        assert!(texts.iter().any(|text| text.starts_with("fault: the NIC 10.0.0.3")), "{texts:?}");
    }
}
