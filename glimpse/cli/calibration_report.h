// What a calibration found, in words and tables for standard output. Any thread.
#pragma once

#include <string>
#include <vector>

#include "glimpse/calibrate/budgets.h"
#include "glimpse/calibrate/calibrate.h"

namespace glimpse::cli {

/// A line for each method: what was chosen, and what it keeps.
std::string choices_text(const calibrate::Calibration& found);
/// What was tried, row by row, and Kascade's anchors for every number of them.
std::string candidates_text(const calibrate::Calibration& found);
/// The budgets in a line, and what they keep beside as many tokens for every head.
std::string budgets_text(const calibrate::BudgetCalibration& found);
/// A row for each method and budget, a column for each kind of task that has right answers.
std::string table_text(const plan::Profile& profile);

}  // namespace glimpse::cli
