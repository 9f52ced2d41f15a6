//! What is shown to people, whoever wrote it: a name in a file or on the command line may be meant for their terminal.

/// `text` for a terminal: a control character (an escape sequence in a log line, say) and what turns the
/// direction of all that follows become a visible `·`, and what goes beyond `chars_max` characters becomes `…`.
#[must_use]
pub fn printable(text: &str, chars_max: usize) -> String {
    let mut shown = String::new();
    for (position, c) in text.chars().enumerate() {
        if position + 1 >= chars_max && text.chars().nth(chars_max).is_some() {
            shown.push('…');
            break;
        }
        shown.push(match c {
            '\t' => ' ',
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                '·'
            }
            c => c,
        });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\tc\u{9b}", 80), "a·[31mb c·");
        assert_eq!(printable("a\u{202e}b\u{2067}c\u{2069}", usize::MAX), "a·b·c·");
    }

    #[test]
    fn long_text_is_cut_to_the_width() {
        assert_eq!(printable("abcdef", 6), "abcdef");
        assert_eq!(printable("abcdefg", 6), "abcde…");
        assert_eq!(printable("", 6), "");
    }
}
