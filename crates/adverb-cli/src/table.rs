//! Tables of text.

use std::fmt;

/// A table whose columns are as wide as their widest cell. The output is the same on a terminal and in a file.
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[String; N]>,
}

/// A column's heading and alignment.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// Left-aligned, for words.
    Left(&'static str),
    /// Right-aligned, for numbers.
    Right(&'static str),
}

impl<const N: usize> Table<N> {
    /// Creates a table without rows.
    pub(crate) fn new(columns: [Column; N]) -> Table<N> {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row. An empty cell is printed as `-`, unless its column has no heading.
    pub(crate) fn add_row(&mut self, mut cells: [String; N]) {
        for (cell, column) in cells.iter_mut().zip(self.columns) {
            if cell.is_empty() && !column.heading().is_empty() {
                cell.push('-');
            }
        }
        self.rows.push(cells);
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Prints nothing, not even the headings, if there are no rows.
impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        let headings = self.columns.map(|column| column.heading().to_owned());
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let widths: [usize; N] =
            std::array::from_fn(|n| lines().map(|cells| cells[n].chars().count()).max().unwrap_or(0));
        for cells in lines() {
            let mut line = String::new();
            for ((cell, column), width) in cells.iter().zip(self.columns).zip(widths) {
                line += &match column {
                    Column::Left(_) => format!("{cell:<width$}  "),
                    Column::Right(_) => format!("{cell:>width$}  "),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Column::Left(heading) | Column::Right(heading) => heading,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Table};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([Column::Left("NAME"), Column::Right("INDEX"), Column::Left("NOTE")]);
        table.add_row(["rxe0".to_owned(), "1".to_owned(), String::new()]);
        table.add_row(["mlx5_bond_0".to_owned(), "123456".to_owned(), "chosen".to_owned()]);
        assert_eq!(
            table.to_string(),
            "NAME          INDEX  NOTE\n\
             rxe0              1  -\n\
             mlx5_bond_0  123456  chosen\n"
        );
    }

    #[test]
    fn column_without_heading_is_for_marks() {
        let mut table = Table::new([Column::Left(""), Column::Left("NAME")]);
        table.add_row([String::new(), "rxe0".to_owned()]);
        table.add_row(["*".to_owned(), "rxe1".to_owned()]);
        assert_eq!(table.to_string(), "   NAME\n   rxe0\n*  rxe1\n");
    }

    #[test]
    fn a_table_without_rows_is_empty() {
        assert_eq!(Table::new([Column::Left("NAME")]).to_string(), "");
    }
}
