// Package term is what the command needs of a terminal: raw mode that is always
// undone, its size, a filter for escape sequences that would act on the terminal
// behind the user's back, a line of progress, and tables.
//
// It does not emulate a terminal, and the filter is no substitute for a terminal
// that is safe: it removes what reaches beyond the screen.
package term
